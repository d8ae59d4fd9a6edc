#!/usr/bin/env bash
# Makes the files of a release in dist/: those of `make packages`, the release notes and, with
# KEY, a signature of the checksums.
#
#   tools/release.sh VERSION [KEY]
#
# VERSION must have a section in CHANGELOG.md. KEY is a secret key as gpg names it. Nothing is
# tagged or uploaded.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly version=$1 key=${2-}

die() {
    printf 'release: %s\n' "$*" >&2
    exit 1
}

[[ $version =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || die "give VERSION=, as in VERSION=0.2.0"
[[ -z $(git status --porcelain) ]] || die "there are changes that are not committed: nobody could build the same"
# From its heading to the next.
notes=$(awk -v heading="## [$version]" 'index($0, heading) == 1 { found = 1; next } /^## / { found = 0 } found' CHANGELOG.md)
[[ -n ${notes//[[:space:]]/} ]] || die "CHANGELOG.md has no section '## [$version]' with anything in it"
[[ -z $key ]] || gpg --list-secret-keys "$key" >/dev/null || die "gpg has no secret key $key"

OUT= VERSION=$version tools/packages.sh
# The notes begin with an empty line.
printf '# Guideway %s\n%s\n' "$version" "$notes" >dist/RELEASE_NOTES.md
(cd dist && sha256sum RELEASE_NOTES.md >>SHA256SUMS && sha256sum --check --quiet SHA256SUMS)
if [[ -n $key ]]; then
    gpg --batch --yes --local-user "$key" --armor --detach-sign dist/SHA256SUMS
    gpg --verify dist/SHA256SUMS.asc dist/SHA256SUMS
fi
echo "release: $version is in dist/; tag $(git rev-parse --short HEAD) and upload it"
