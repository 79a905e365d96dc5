//! What a page of the documentation has: sections, and blocks of commands in them.

use std::fs;

/// The operator's manual, as it is now.
pub fn operations() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/operations.md");
    fs::read_to_string(path).expect("the page")
}

/// From a heading to the next one.
pub fn section<'a>(page: &'a str, heading: &str) -> &'a str {
    let begin = page
        .match_indices(heading)
        .find(|(at, _)| {
            let (before, after) = (&page[..*at], &page[at + heading.len()..]);
            (before.is_empty() || before.ends_with('\n')) && after.starts_with('\n')
        })
        .unwrap_or_else(|| panic!("no section \"{heading}\""));
    let section = &page[begin.0 + heading.len()..];
    let mut is_code = false;
    let mut len = 0;
    for line in section.split_inclusive('\n') {
        is_code ^= line.trim_start().starts_with("```");
        if !is_code && line.starts_with('#') {
            break;
        }
        len += line.len();
    }
    &section[..len]
}

/// Its fenced blocks of this kind, in order.
pub fn blocks(section: &str, kind: &str) -> Vec<String> {
    let mut blocks = Vec::new();
    let mut fences = section.split("```").skip(1);
    while let Some(block) = fences.next() {
        if let Some((of, text)) = block.split_once('\n')
            && of == kind
        {
            blocks.push(text.to_owned());
        }
        fences.next();
    }
    blocks
}

/// All headings that begin so.
pub fn headings(page: &str, begin: &str) -> Vec<String> {
    page.lines()
        .filter(|line| line.starts_with(begin))
        .map(str::to_owned)
        .collect()
}

mod tests {
    use super::*;

    const PAGE: &str =
        "# One\n```sh\n# no heading\na\n```\ntext\n```\nb\n```\n```sh\nc\n```\n## Two\n```sh\nd\n```\n";

    #[test]
    fn a_section_ends_at_the_next_heading_and_has_its_blocks() {
        assert_eq!(blocks(section(PAGE, "# One"), "sh"), ["# no heading\na\n", "c\n"]);
        assert_eq!(blocks(section(PAGE, "## Two"), "sh"), ["d\n"]);
        assert_eq!(headings(PAGE, "## "), ["## Two"]);
    }
}
