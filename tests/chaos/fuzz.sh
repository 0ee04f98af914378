#!/usr/bin/env bash
# tests/chaos/fuzz.sh SECONDS [TARGET…]: fuzzes each target (all, if none is named) for that long, guided by coverage.
#
# Works with a stable compiler: libFuzzer only needs counters in the code, which LLVM's own pass puts there. Prints one
# line of JSON a target; with RECORD=FILE it is appended to that file too. A finding ends with the input's path and the
# one command that repeats it. What was learnt is kept below target/fuzz and is where the next run begins.
set -euo pipefail
cd "$(dirname "$0")/../.."

seconds=${1:?usage: tests/chaos/fuzz.sh SECONDS [TARGET…]}
shift
targets=("$@")
[ ${#targets[@]} -gt 0 ] || targets=(png jpeg webp gif bmp tiff pnm tar listing parquet index segment page state trace journal node)
seed=${SEED:-$(od -An -N3 -tu4 /dev/urandom | tr -d ' ')}
work=$PWD/target/fuzz
fuzz=$PWD/tests/fuzz
host=$(rustc -vV | sed -n 's/^host: //p')

# With --target the flags reach what is fuzzed, and neither build scripts nor macros.
export RUSTFLAGS="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
-Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
-Cllvm-args=-sanitizer-coverage-trace-compares"
export CUDARC_CUDA_VERSION=12080
echo "── building the fuzz targets"
cargo build --release --locked --quiet --manifest-path "$fuzz/targets/Cargo.toml" --target "$host" \
  --target-dir "$work/build"

# What a target starts from: the files that broke something once, whole images, and what our own writers write.
seeds_of() {
  local folder=$work/seeds/$1
  rm -rf "$folder"
  mkdir -p "$folder"
  LOSSFEED_SEEDS=$folder "$work/build/$host/release/$1" >"$work/$1.log" 2>&1 || { cat "$work/$1.log" >&2; exit 1; }
  case $1 in
    png) cp "$fuzz"/corpus/*.png "$fuzz"/../golden/images/*.png "$folder" ;;
    jpeg) cp "$fuzz"/corpus/*.jpg "$fuzz"/../golden/images/*.jpg "$folder" ;;
    webp | gif | bmp) cp "$fuzz"/corpus/*."$1" "$fuzz"/../golden/images/*."$1" "$folder" ;;
    tiff) cp "$fuzz"/corpus/*.tif "$fuzz"/../golden/images/*.tif "$folder" ;;
    pnm) cp "$fuzz"/corpus/*.ppm "$fuzz"/../golden/images/*.p[pgb]m "$folder" ;;
    tar) cp "$fuzz"/corpus/*.tar "$folder" ;;
  esac
  local found
  for found in "$fuzz"/corpus/"$1"-*.bin; do [ ! -e "$found" ] || cp "$found" "$folder"; done
}

failed=0
for target in "${targets[@]}"; do
  binary=$work/build/$host/release/$target
  [ -x "$binary" ] || { echo "$target is no fuzz target: png jpeg webp gif bmp tiff pnm tar listing parquet index segment page state trace journal node" >&2; exit 2; }
  seeds_of "$target"
  mkdir -p "$work/corpus/$target" "$work/findings/$target"
  log=$work/$target.log
  dictionary=$fuzz/dictionaries/$target.dict
  options=(-seed="$seed" -max_total_time="$seconds" -rss_limit_mb=1024 -malloc_limit_mb=512 -timeout=20 -max_len=16384
    -print_final_stats=1 -artifact_prefix="$work/findings/$target/")
  [ ! -f "$dictionary" ] || options+=(-dict="$dictionary")
  echo "── $target, $seconds s, seed $seed"
  rc=0
  "$binary" "${options[@]}" "$work/corpus/$target" "$work/seeds/$target" >"$log" 2>&1 || rc=$?
  stat() { sed -n "s/^stat::$1: *//p" "$log" | tail -n 1; }
  last=$(grep -aE '^#[0-9]+.* cov: ' "$log" | tail -n 1)
  value() { sed -nE "s/.* $1: ([0-9]+).*/\1/p" <<<"$last"; }
  contained=$(grep -ac '^CONTAINED PANIC' "$log" || true)
  form='{"target":"%s","seconds":%s,"seed":%s,"runs":%s,"coverage":%s,"features":%s,"peak_rss_mb":%s,'
  form+='"contained_panics":%s,"findings":%s}'
  # shellcheck disable=SC2059
  line=$(printf "$form" "$target" "$seconds" "$seed" "$(stat number_of_executed_units || true)" "$(value cov)" \
    "$(value ft)" "$(stat peak_rss_mb || true)" "$contained" "$([ "$rc" = 0 ] && echo 0 || echo 1)")
  line=${line//:,/:null,}
  line=${line//:\}/:null\}}
  echo "$line"
  [ -z "${RECORD:-}" ] || echo "$line" >>"$RECORD"
  # A decoder that panics is contained by the engine; its authors will want to know where.
  grep -a '^CONTAINED PANIC' "$log" | cut -c1-240 || true
  if [ "$rc" != 0 ]; then
    failed=1
    grep -aE 'panicked|^panic:|assertion|ERROR: libFuzzer|SUMMARY' "$log" | head -n 6 >&2 || true
    input=$(sed -n "s/^.*Test unit written to //p" "$log" | tail -n 1)
    echo "FINDING in $target (exit $rc), seed $seed. The whole log: $log" >&2
    [ -z "$input" ] || echo "input: $input
repeat: $binary ${input}
keep:   cp $input tests/fuzz/corpus/NAME (a name that says what it does; of no format with an ending of its own: $target-NAME.bin)" >&2
  fi
done
exit "$failed"
