//! The files that name special tokens.

use super::*;
use handgrad::formats::generation_config::end_of_text_ids;
use handgrad::nn::Transformer;

#[test]
fn special_tokens_stand_where_other_programs_look() {
    let dir = tempfile::tempdir().unwrap();
    let read = |name: &str| -> Value { serde_json::from_slice(&fs::read(dir.path().join(name)).unwrap()).unwrap() };
    let model = Transformer::new(&ModelConfig { n_layer: 1, ..ModelConfig::chapter8(257) }, 0).unwrap();
    for end in [true, false] {
        let tokenizer = Tokenizer::bytes(end);
        model_dir::save(dir.path(), &model, &tokenizer, 0).unwrap();
        let id = if end { json!(256) } else { Value::Null };
        for file in ["config.json", "generation_config.json"] {
            assert_eq!(read(file)["eos_token_id"], id, "{file}");
            assert!(read(file).get("bos_token_id").is_some_and(Value::is_null), "{file}: not the class's own");
        }
        // The class that reads tokenizer.json as it is, not the one of the model type.
        let config = read("tokenizer_config.json");
        assert_eq!(config["tokenizer_class"], "PreTrainedTokenizerFast");
        assert_eq!(config["eos_token"], if end { json!(END_OF_TEXT) } else { Value::Null });
        assert_eq!(config["model_max_length"], 64);
        let ids = end_of_text_ids(dir.path(), &tokenizer, &mut |line| panic!("{line}")).unwrap();
        assert_eq!(ids, if end { vec![256] } else { vec![] });
    }
}

#[test]
fn ids_that_end_a_text_are_those_of_the_files() {
    let dir = tempfile::tempdir().unwrap();
    let ids = |config: Value, generation: Value| {
        fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
        fs::write(dir.path().join("generation_config.json"), generation.to_string()).unwrap();
        end_of_text_ids(dir.path(), &Tokenizer::bytes(true), &mut |_| ())
    };
    let qwen3 = |id: Value| json!({"model_type": "qwen3", "eos_token_id": id});
    assert_eq!(ids(qwen3(json!(7)), json!({})).unwrap(), [7]);
    assert_eq!(ids(qwen3(json!([7, 9])), json!({})).unwrap(), [7, 9]);
    assert_eq!(ids(qwen3(json!(7)), json!({"eos_token_id": [1, 2]})).unwrap(), [1, 2]);
    assert_eq!(ids(qwen3(json!(7)), json!({"eos_token_id": null})).unwrap(), [7]);
    assert_eq!(ids(qwen3(Value::Null), json!({})).unwrap(), [256], "the tokenizer's");
    assert_eq!(ids(json!({"model_type": "qwen3"}), json!({})).unwrap(), [256]);
    assert_eq!(ids(json!({"model_type": "llama"}), json!({})).unwrap(), [2], "the class's");
    assert_eq!(ids(json!({"model_type": "llama", "handgrad_init": "he"}), json!({})).unwrap(), [256], "a file of ours");
    for bad in [json!("7"), json!(-1), json!(1.5), json!([1, null]), json!(1u64 << 32), json!({})] {
        assert_says(
            ids(qwen3(bad.clone()), json!({})),
            &["config.json: eos_token_id: found", "an id or a list of ids"],
        );
        assert_says(
            ids(qwen3(json!(1)), json!({"eos_token_id": bad})),
            &["generation_config.json: eos_token_id: found"],
        );
    }
    fs::remove_file(dir.path().join("generation_config.json")).unwrap();
    assert_eq!(end_of_text_ids(dir.path(), &Tokenizer::bytes(true), &mut |_| ()).unwrap(), [1]);
}

#[test]
fn settings_that_are_flags_here_are_said() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("config.json"), "{}").unwrap();
    let settings = json!({"temperature": 0.6, "top_k": 20, "do_sample": true, "top_p": null, "eos_token_id": 3});
    fs::write(dir.path().join("generation_config.json"), settings.to_string()).unwrap();
    let mut said = vec![];
    end_of_text_ids(dir.path(), &Tokenizer::bytes(true), &mut |line| said.push(line.to_string())).unwrap();
    assert!(
        said.len() == 1 && said[0].contains("not applied") && said[0].ends_with("temperature 0.6, top_k 20"),
        "{said:?}"
    );
}
