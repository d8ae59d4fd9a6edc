#!/usr/bin/env bash
# Selects the compilers to test the eBPF programs with: the oldest and the newest clang of the
# distribution, from version 14 on, or with `all` every one. Installs missing ones (as root),
# and prints all on one line, for tests:
#
#   BPF_COMPILERS=$(tools/bpf-compilers.sh [all]) cargo test every_compiler
set -euo pipefail
cd "$(dirname "$0")/.."

readonly OLDEST=14

main() {
    local compilers missing=() compiler
    mapfile -t compilers < <(candidates)
    if ((${#compilers[@]} == 0)); then
        echo "bpf-compilers: neither apt nor PATH has a clang-N from $OLDEST on" >&2
        exit 1
    fi
    [[ ${1-} == all ]] || mapfile -t compilers < <(printf '%s\n' "${compilers[0]}" "${compilers[-1]}" | uniq)
    for compiler in "${compilers[@]}"; do
        command -v "$compiler" >/dev/null || missing+=("$compiler")
    done
    ((${#missing[@]} == 0)) || tools/install-deps.sh packages "${missing[@]}" >&2
    echo "${compilers[*]}"
}

# clang-14, clang-15, ...: what apt can install, or else what is there.
candidates() {
    local names
    names=$(apt-cache --names-only search '^clang-[0-9]+$' 2>/dev/null | cut -d' ' -f1) || true
    [[ -n $names ]] || names=$(compgen -c clang- | grep -E '^clang-[0-9]+$') || true
    sort -u -t- -k2,2n <<<"$names" | awk -F- -v oldest="$OLDEST" '$2 >= oldest'
}

main "$@"
