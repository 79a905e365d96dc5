# shellcheck shell=bash
# Checks of the documents, for make/lint.sh: what they link to and the tests that they name exist.

# Links within the tree: the file is there, and the heading, if one is named.
dead_links() {
    local page target file anchor bad=0
    while read -r page; do
        while read -r target; do
            file=${target%%#*} anchor=
            case $target in *'#'*) anchor=${target#*#} ;; esac
            file=${file:+$(dirname "$page")/$file}
            file=${file:-$page}
            [ -e "$file" ] || { note "$page links to $target, which is not there"; bad=1; continue; }
            [ -z "$anchor" ] || grep -qxF -- "$anchor" <<<"$(headings "$file")" ||
                { note "$page links to $target, and there is no such heading"; bad=1; }
        done < <(prose "$page" | grep -oE '\]\([^)]+\)' | sed 's/^](//; s/)$//' | grep -vE '^[a-z]+:' || true)
    done < <(tracked '*.md')
    return "$bad"
}

# A page without its blocks of code.
prose() { awk '/^ *```/ { code = !code; next } !code' "$1"; }

# The anchors of a page's headings, as GitHub makes them: lower case, no punctuation, hyphens for spaces.
headings() {
    prose "$1" | sed -nE 's/^#+ +//p' | tr '[:upper:]' '[:lower:]' | sed -E 's/[^a-z0-9 _-]//g; s/ /-/g'
}

# In docs/lease-proof.md every row of a table names code: `FILE::FUNCTION` (or a constant), a function, or a file.
proof_names() {
    local token file name found bad=0
    while read -r token; do
        case $token in *::*) file=${token%%::*} name=${token#*::} ;; *) continue ;; esac
        found=$(tracked '*.rs' | grep -E "(^|/)${file//./\\.}$" | xargs -r grep -lE "\b(fn|const) $name\b" || true)
        [ -n "$found" ] || { note "docs/lease-proof.md names $token, which is not there"; bad=1; }
    done < <(grep '^|' docs/lease-proof.md | grep -oE '`[^`]+`' | tr -d '`' | sort -u)
    return "$bad"
}

# What the last column of a table of tests has in code is a function (… stands for what was left out of its name), a
# file or directory, or a target of make.
named_tests() {
    local token pattern bad=0 files functions
    files=$(tracked)
    functions=$(tracked '*.rs' | xargs grep -ohE '\bfn [a-z0-9_]+' | sort -u)
    while read -r token; do
        pattern=${token//…/[a-z0-9_]*}
        pattern=${pattern//./\\.}
        pattern=${pattern%/}
        grep -qxE "fn $pattern" <<<"$functions" && continue
        grep -qE "(^|/)$pattern(/|\.[a-z]+$|$)" <<<"$files" && continue
        grep -qxE 'make [a-z-]+' <<<"$token" && continue
        note "no test, function or file is called $token"
        bad=1
    done < <(last_columns | grep -oE '`[^`]+`' | tr -d '`' | sort -u)
    return "$bad"
}

last_columns() {
    # Of the proof all columns count but the first; `FILE::FUNCTION` is looked up by proof_names.
    awk -F'|' '/^\|/ { print $(NF - 2), $(NF - 1) }' docs/lease-proof.md | sed -E 's/`[^`]*::[^`]*`//g'
    { cat docs/incidents.md; sed -n '/^## Architecture invariants/,/^## What is absent/p' docs/architecture.md; } |
        awk -F'|' '/^\|/ { print $(NF - 1) }'
}

# The other way round: a test that is named after an incident is in the table.
incidents_listed() {
    local number bad=0
    while read -r number; do
        grep -qE "^\| 0*$number \|" docs/incidents.md || { note "docs/incidents.md does not have incident $number"; bad=1; }
    done < <({ tracked regress; tracked '*.rs' | xargs grep -ohE 'fn incident_[0-9]+'; } |
        grep -oE 'incident_[0-9]+' | sed -E 's/incident_0*//' | sort -un)
    return "$bad"
}
