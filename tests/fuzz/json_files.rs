//! `config.json` and `tokenizer.json`.

use crate::{Reader, fuzz, scratch};
use handgrad::formats::{config_json, tokenizer_json};
use handgrad::nn::ModelConfig;
use handgrad::tokenizer::bpe::train::BpeTrainer;
use handgrad::tokenizer::bpe::{BpeTokenizer, Pattern};
use handgrad::tokenizer::{SpecialText, Tokenizer};
use serde_json::json;
use std::fs;

#[test]
fn configurations() {
    let dir = scratch();
    let path = dir.path().join("config.json");
    let mut llama = config_json::to_json(&ModelConfig { qk_norm: false, ..ModelConfig::chapter8(65) });
    llama["rope_scaling"] = json!({"rope_type": "default", "rope_theta": 10000.0});
    llama["layer_types"] = json!(["full_attention", "full_attention"]);
    let configs = [ModelConfig::chapter8(65), ModelConfig::classic(65), ModelConfig::report_80m(32768)];
    let json = configs.iter().map(config_json::to_json).chain([llama]);
    let originals: Vec<Vec<u8>> = json.map(|json| serde_json::to_vec_pretty(&json).unwrap()).collect();
    let load = || {
        let config = config_json::read(&path)?;
        config_json::from_json(&config_json::to_json(&config)).map(|again| assert_eq!(again, config))
    };
    fuzz(&Reader { name: "config.json", share: 1, mib: 1, file: &path, load: &load }, &originals);
}

fn learned(pattern: Pattern) -> BpeTokenizer {
    let specials = vec!["<|endoftext|>".to_string(), "<s>".to_string()];
    let trainer = BpeTrainer { specials, pattern, ..BpeTrainer::new(270) };
    trainer.texts(["the quick brown fox, the quick 123 the"]).unwrap()
}

fn tokenizers() -> Vec<Vec<u8>> {
    let mut with_begin = learned(Pattern::Llama3).parts().clone();
    with_begin.begin = with_begin.specials.last().map(|token| token.id);
    let mut with_nfc = learned(Pattern::Qwen2).parts().clone();
    with_nfc.nfc = true;
    let bpe = |tokenizer| Tokenizer::Bpe(Box::new(tokenizer));
    let all = [
        Tokenizer::chars_of(["the quick"], true),
        Tokenizer::bytes(true),
        bpe(learned(Pattern::Gpt2)),
        bpe(BpeTokenizer::new(with_begin).unwrap()),
        bpe(BpeTokenizer::new(with_nfc).unwrap()),
    ];
    all.iter().map(|tokenizer| serde_json::to_vec(&tokenizer_json::to_json(tokenizer)).unwrap()).collect()
}

/// What is accepted can encode, decode and be written.
#[test]
fn tokenizer_files() {
    let dir = scratch();
    let path = dir.path().join("tokenizer.json");
    let written = dir.path().join("written.json");
    let load = || {
        let tokenizer = tokenizer_json::read(&path)?;
        let text = "the quick<|endoftext|> fox e\u{301} 1234";
        let ids = tokenizer.encode_as(text, SpecialText::Allow);
        if let Ok(ids) = ids {
            assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab_size()));
            tokenizer.decode(&ids)?;
        }
        let json = serde_json::to_vec(&tokenizer_json::to_json(&tokenizer))?;
        fs::write(&written, json)?;
        Ok(())
    };
    // A split's regular expression may take 10 MiB compiled, whatever its length, and a few times as much on the way.
    fuzz(&Reader { name: "tokenizer.json", share: 4, mib: 64, file: &path, load: &load }, &tokenizers());
}
