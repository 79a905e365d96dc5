//! Verdicts for people.

use std::collections::BTreeMap;

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, Table};
use idgen_core::history::{History, Invariant, Verdict, alive};

pub fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn new(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(NOTHING).set_header(header.to_vec());
    table
}

pub fn print(history: &History, verdicts: &[Verdict]) {
    println!(
        "\n{} ids in {} statements of {} servers; {} commits of the store, {} deadlines, {} installs, {} fences, {} faults",
        thousands(history.id_count()),
        thousands(history.statements.len() as u64),
        history.servers,
        thousands(history.trail.len() as u64),
        thousands(history.deadlines.len() as u64),
        thousands(history.installs.len() as u64),
        thousands(history.fences.len() as u64),
        history.faults.len(),
    );
    let mut table = new(&["", "invariant", "checked", "violations"]);
    for verdict in verdicts {
        table.add_row([
            verdict.invariant.to_string(),
            verdict.invariant.text().to_owned(),
            thousands(verdict.checked),
            thousands(verdict.violations),
        ]);
    }
    for column in [2, 3] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    println!("{table}");
    for verdict in verdicts {
        for violation in &verdict.shown {
            println!("{}: {}", verdict.invariant, violation.0);
        }
    }
}

/// How soon servers minted again after the faults of each kind.
pub fn print_recoveries(history: &History, by_kind: &BTreeMap<String, Vec<u64>>) {
    let mut table = new(&["fault", "times", "median ms", "slowest ms"]);
    for (kind, after) in by_kind {
        let mut after = after.clone();
        after.sort_unstable();
        let times = history
            .faults
            .iter()
            .filter(|fault| fault.name.starts_with(kind.as_str()))
            .count();
        let (median, slowest) = (after.get(after.len() / 2), after.last());
        let text = |ms: Option<&u64>| ms.map_or("never".to_owned(), |ms| thousands(*ms));
        table.add_row([kind.clone(), times.to_string(), text(median), text(slowest)]);
    }
    println!(
        "\nminting again after the end of a fault ({} ms are allowed):",
        alive::back_within_ms(&history.times)
    );
    println!("{table}");
}

/// A check that has looked at nothing has shown nothing. There may be no fence and no early end of a holder in a
/// short run.
pub fn assert_something_was_checked(verdicts: &[Verdict]) {
    let may_be_idle = [Invariant::Fenced, Invariant::NotForced];
    for verdict in verdicts {
        let idle = verdict.checked == 0 && !may_be_idle.contains(&verdict.invariant);
        assert!(!idle, "{} was checked on nothing", verdict.invariant);
    }
}
