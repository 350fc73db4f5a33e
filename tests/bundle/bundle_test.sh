#!/usr/bin/env bash
# bundle_test.sh SOURCE FAKE [PYTHON]: the bundle runs from another folder, with
# an empty environment, and needs no library but the machine's own and those it
# carries. Its own programs, by their sha256, are the ones that verify_test.py
# runs on the fake driver in FAKE, and torch_test.py with PYTHON.
set -euo pipefail
source=$1 fake=$2 python=${3:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }

"$source/deploy/bundle/make" "$work/made"
tar -C "$work" -xzf "$work/made/sluice-bundle.tar.gz"
mv "$work/bundle" "$work/elsewhere"
rm -rf "$work/made"
(cd "$work/elsewhere" && sha256sum --quiet -c sha256sums) ||
  fail "other programs than sha256sums says"
newest=$(objdump -T "$work"/elsewhere/bin/* "$work"/elsewhere/lib/* |
  grep -o 'GLIBC_2\.[0-9]*' | sort -V | tail -n 1)
[ "$(printf '%s\n' "$newest" GLIBC_2.35 | sort -V |
  tail -n 1)" = GLIBC_2.35 ] ||
  fail "it needs $newest, and the kit promises 2.35"
size=$(du -sm "$work/elsewhere" | cut -f1)
[ "$size" -le 60 ] || fail "$size MiB"

for package in coinor-libcbc-dev libgtest-dev libprotobuf-dev; do
  grep -q "^${package}[-.0-9]*$" "$work/elsewhere/licenses/THIRD_PARTY" ||
    fail "licenses/THIRD_PARTY has no licence of $package"
done

cd /
clean=(env -i PATH=/usr/bin:/bin)
for binary in "$work"/elsewhere/bin/*; do
  others=$("${clean[@]}" ldd "$binary" | awk '$2 == "=>" {print $1, $3}' |
    grep -Ev '^(libc|libm|libpthread|libdl|librt|libstdc\+\+|libgcc_s)\.so' |
    grep -v " $work/elsewhere/" || true)
  [ -z "$others" ] || fail "$binary also needs: $others"
done

"${clean[@]}" "$work/elsewhere/run" --stage sim --out "$work/report" ||
  fail "stage sim"
[ -s "$work/report/sim-conformance_test.json" ] || fail "no report"
status=0
"${clean[@]}" "$work/elsewhere/run" --stage moon 2>"$work/error" || status=$?
[ $status = 2 ] || fail "an unknown stage gave status $status"
grep -q "no stage 'moon'" "$work/error" || fail "no word about the stage"
if ! compgen -G '/dev/nvidia[0-9]*' >/dev/null; then
  ! "${clean[@]}" "$work/elsewhere/run" --stage cuda >/dev/null 2>&1 ||
    fail "stage cuda passed without a GPU"
fi
python3 "$source/tests/bundle/verify_test.py" "$work/elsewhere/bin" "$fake" ||
  fail "verify on the fake driver"
if [ -n "$python" ]; then
  for test in torch_test whole_test; do
    python3 "$source/tests/bundle/$test.py" "$work/elsewhere/bin" "$fake" \
      "$python" || fail "verify with torch: $test"
  done
fi
(cd "$work/elsewhere" && sha256sum --quiet -c sha256sums) ||
  fail "the kit has changed its own files"
echo "bundle test passed"
