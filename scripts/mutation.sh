#!/usr/bin/env bash
# Checks the gradient checks: changes the backward halves of operators and the tape, one small change at a time, and runs
# only the tests of gradients (finite differences, values worked out by hand, PyTorch's). A change that they do not notice
# is a survivor.
#
#   scripts/mutation.sh            60 mutants drawn at random; prints the seed
#   scripts/mutation.sh 200 7      200 mutants, seed 7
#
# Needs cargo-mutants (cargo install cargo-mutants). The report is left in mutants.out/.
set -euo pipefail
cd "$(dirname "$0")/.."
count=${1:-60}
seed=${2:-$RANDOM}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Functions whose mistakes are wrong gradients: the tape, and the operators with their backward halves and what they call.
# Launches are left out, as these tests run on the CPU (scripts/kernel_mutations.py changes the kernels), and operators that
# no gradient passes.
cargo mutants --list --json --file 'src/ops/*.rs' --file src/tape.rs --exclude 'src/ops/cases*' --exclude src/ops/check.rs \
    --exclude src/ops/mod.rs --exclude src/ops/cast.rs --exclude src/ops/sample.rs --exclude src/ops/cache_write.rs \
    | python3 -c '
import json, random, re, sys
count, seed = int(sys.argv[1]), int(sys.argv[2])
mutants = json.load(sys.stdin)
launch = re.compile(r"launch|grid|teams|column_tiles|^sort$|sizes|scale_log2|sees_nothing|RopeTable::on|rounding", re.I)
chosen = []
for mutant in mutants:
    function = (mutant.get("function") or {}).get("function_name", "")
    if not launch.search(function):
        chosen.append(mutant["name"])
random.Random(seed).shuffle(chosen)
print(f"{len(chosen)} mutants of operators and tape, {min(count, len(chosen))} drawn with seed {seed}", file=sys.stderr)
for name in chosen[:count]:
    print("^" + re.escape(name) + "$")
' "$count" "$seed" > "$work/names"
mapfile -t names < "$work/names"
filters=()
for name in "${names[@]}"; do filters+=(--re "$name"); done

# First the tests must pass without a change. Exit status 2: survivors, 3: a test that hung, which counts as caught.
rm -rf mutants.out
tests=(--test gradients --test operators --test fused --test tape --test golden --test optimizer)
cargo test --profile mutants "${tests[@]}"
status=0
cargo mutants --file 'src/ops/*.rs' --file src/tape.rs "${filters[@]}" --profile mutants --baseline skip --timeout 120 \
    --no-shuffle -- "${tests[@]}" || status=$?
case $status in 0 | 2 | 3) ;; *) exit "$status" ;; esac

python3 - <<'TXT'
import json
outcomes = [o for o in json.load(open("mutants.out/outcomes.json"))["outcomes"] if o["scenario"] != "Baseline"]
tally = {}
for outcome in outcomes:
    tally[outcome["summary"]] = tally.get(outcome["summary"], 0) + 1
caught, missed = tally.get("CaughtMutant", 0) + tally.get("Timeout", 0), tally.get("MissedMutant", 0)
print(f"\n{caught} of {caught + missed} caught ({100 * caught / max(caught + missed, 1):.0f}%), {tally.get('Unviable', 0)} did not compile")
for outcome in outcomes:
    if outcome["summary"] == "MissedMutant":
        print("survived:", outcome["scenario"]["Mutant"]["name"])
TXT
