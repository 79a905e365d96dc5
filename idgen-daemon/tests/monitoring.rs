//! What is in `monitoring/` names what there is: metrics that idgend exports, rules that are recorded, runbooks that are
//! written, and each alert has a case that fires and one that does not. What the rules do is checked by promtool
//! (`make test SUITES=monitoring`).

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::fs;
    use std::path::{Path, PathBuf};

    use idgen_daemon::metrics::Metrics;
    use serde_json::Value;

    /// What a histogram is shown as.
    const PARTS: [&str; 3] = ["_bucket", "_sum", "_count"];

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
    }

    fn read(path: impl AsRef<Path>) -> String {
        let path = root().join(path);
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// The files of `monitoring/FOLDER`, by name.
    fn files(folder: &str) -> BTreeMap<String, String> {
        let folder = Path::new("monitoring").join(folder);
        let entries = fs::read_dir(root().join(&folder)).expect("a folder");
        let names = entries.map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .into_string()
                .expect("a name")
        });
        names
            .map(|name| (name.clone(), read(folder.join(&name))))
            .collect()
    }

    /// An alert of the rules.
    #[derive(Debug)]
    struct Alert {
        name: String,
        file: String,
        severity: String,
        /// Of a budget that burns.
        window: Option<String>,
        after: String,
        lines: Vec<String>,
    }

    /// What stands behind `key:` in a line or in the braces of one.
    fn value_of(line: &str, key: &str) -> Option<String> {
        let (_, value) = line.split_once(&format!("{key}: "))?;
        let end = value.find([',', '}']).unwrap_or(value.len());
        Some(value.get(..end)?.trim().trim_matches('"').to_owned())
    }

    fn alerts() -> Vec<Alert> {
        let mut alerts: Vec<Alert> = Vec::new();
        for (file, text) in files("rules") {
            let mut inside = false;
            for line in text.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
                if let Some(name) = line.strip_prefix("- alert: ") {
                    inside = true;
                    alerts.push(Alert {
                        name: name.to_owned(),
                        file: file.trim_end_matches(".yml").to_owned(),
                        severity: String::new(),
                        window: None,
                        after: "at once".to_owned(),
                        lines: Vec::new(),
                    });
                } else if line.starts_with("- ") {
                    inside = false;
                }
                let Some(alert) = alerts.last_mut().filter(|_| inside) else {
                    continue;
                };
                if line.starts_with("labels: ") {
                    alert.severity = value_of(line, "severity").unwrap_or_default();
                    alert.window = value_of(line, "window");
                } else if let Some(after) = line.strip_prefix("for: ") {
                    alert.after = after.to_owned();
                }
                alert.lines.push(line.to_owned());
            }
        }
        assert!(alerts.len() > 40, "all rules are read: {}", alerts.len());
        alerts
    }

    /// The names in a text that begin like this.
    fn names(text: &str, begin: &str) -> BTreeSet<String> {
        let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
        let words = text.split(|c: char| !is_part(c));
        words
            .filter(|word| word.starts_with(begin))
            .map(str::to_owned)
            .collect()
    }

    /// The anchor of a heading, as make/docs.sh makes it.
    fn anchors(page: &str) -> BTreeSet<String> {
        let headings = page.lines().filter(|line| line.starts_with('#'));
        headings
            .map(|line| {
                let text = line.trim_start_matches('#').trim().to_lowercase();
                let kept = text
                    .chars()
                    .filter(|c| c.is_ascii_alphanumeric() || " _-".contains(*c));
                kept.map(|c| if c == ' ' { '-' } else { c }).collect()
            })
            .collect()
    }

    fn dashboard() -> Value {
        serde_json::from_str(&read("monitoring/grafana.json")).expect("JSON")
    }

    /// Every query of the dashboard.
    fn queries(of: &Value, into: &mut Vec<String>) {
        match of {
            Value::Object(fields) => {
                for (key, value) in fields {
                    match (key.as_str(), value) {
                        ("expr" | "query", Value::String(query)) => into.push(query.clone()),
                        _ => queries(value, into),
                    }
                }
            }
            Value::Array(all) => all.iter().for_each(|value| queries(value, into)),
            _ => {}
        }
    }

    #[test]
    fn every_metric_of_rules_and_dashboard_is_exported() {
        let metrics = Metrics::new().expect("metrics");
        assert!(metrics.exports("idgen_info") && !metrics.exports("idgen_no_such_metric"));
        // A list: rules and their tests have the same names.
        let mut texts: Vec<_> = files("rules").into_iter().chain(files("tests")).collect();
        let mut of_dashboard = Vec::new();
        queries(&dashboard(), &mut of_dashboard);
        assert!(of_dashboard.len() > 20, "{of_dashboard:?}");
        texts.push(("grafana.json".to_owned(), of_dashboard.join("\n")));
        for (file, text) in texts {
            for name in names(&text, "idgen_") {
                let whole = PARTS.iter().find_map(|part| name.strip_suffix(part));
                let is_there = metrics.exports(&name) || whole.is_some_and(|whole| metrics.exports(whole));
                assert!(is_there, "{file} names {name}, which idgend does not export");
            }
        }
    }

    #[test]
    fn every_recorded_name_that_is_used_is_recorded_and_the_other_way_round() {
        let rules = files("rules");
        let recorded: BTreeSet<String> = rules
            .values()
            .flat_map(|text| text.lines())
            .filter_map(|line| line.trim().strip_prefix("- record: "))
            .map(str::to_owned)
            .collect();
        let mut of_dashboard = Vec::new();
        queries(&dashboard(), &mut of_dashboard);
        let is_record = |line: &&str| !line.trim().starts_with("- record: ");
        let used: String = rules
            .values()
            .flat_map(|text| text.lines())
            .filter(is_record)
            .chain(of_dashboard.iter().map(String::as_str))
            .flat_map(|line| [line, "\n"])
            .collect();
        assert_eq!(names(&used, "idgen:"), recorded);
    }

    #[test]
    fn every_alert_has_a_runbook_and_the_list_of_them_is_complete() {
        let page = read("docs/operations.md");
        let anchors = anchors(&page);
        let mut listed: Vec<&str> = page.lines().filter(|line| line.starts_with("| [Idgen")).collect();
        for alert in alerts() {
            let anchor = format!("alert-{}", alert.name.to_lowercase());
            let runbook = format!("runbook: docs/operations.md#{anchor}");
            assert!(alert.lines.contains(&runbook), "{alert:?} has not {runbook}");
            assert!(
                anchors.contains(&anchor),
                "docs/operations.md has no heading {anchor}"
            );
            assert!(
                ["page", "ticket", "none"].contains(&alert.severity.as_str()),
                "{alert:?}"
            );
            let after = match &alert.window {
                Some(window) => format!("`{window}`, {}", alert.after),
                None => alert.after.clone(),
            };
            let row = format!(
                "| [{}](#{anchor}) | {} | {} | {after} | ",
                alert.name, alert.severity, alert.file
            );
            let place = listed.iter().position(|line| line.starts_with(&row));
            let place = place.unwrap_or_else(|| panic!("docs/operations.md has no row\n{row}"));
            listed.remove(place);
        }
        assert!(
            listed.is_empty(),
            "rows of alerts that are not there: {listed:#?}"
        );
        let headings = page.lines().filter_map(|line| line.strip_prefix("### Alert: "));
        let written: BTreeSet<String> = headings.map(str::to_owned).collect();
        let there: BTreeSet<String> = alerts().into_iter().map(|alert| alert.name).collect();
        assert_eq!(written, there);
    }

    /// What a case of promtool expects.
    #[derive(Default)]
    struct Case {
        alert: String,
        fires: bool,
        windows: BTreeSet<String>,
    }

    fn cases(text: &str) -> Vec<Case> {
        let mut cases: Vec<Case> = Vec::new();
        for line in text.lines().map(str::trim) {
            if let Some(alert) = line.strip_prefix("alertname: ") {
                cases.push(Case {
                    alert: alert.to_owned(),
                    ..Case::default()
                });
            } else if line.starts_with("- exp_labels: ")
                && let Some(case) = cases.last_mut()
            {
                case.fires = true;
                case.windows.extend(value_of(line, "window"));
            }
        }
        cases
    }

    #[test]
    fn every_alert_has_a_case_that_fires_and_one_that_does_not() {
        let tests = files("tests");
        for alert in alerts() {
            let text = tests
                .get(&format!("{}.yml", alert.file))
                .expect("tests of this file");
            let cases = cases(text);
            let of_it = || cases.iter().filter(|case| case.alert == alert.name);
            let fires =
                |case: &Case| case.fires && alert.window.iter().all(|window| case.windows.contains(window));
            assert!(of_it().any(fires), "nothing fires {alert:?}");
            // The dead man's switch has no other.
            let is_silent = |case: &Case| !case.fires || alert.window.is_some() && !fires(case);
            assert!(
                alert.severity == "none" || of_it().any(is_silent),
                "nothing keeps {alert:?} silent"
            );
        }
    }

    #[test]
    fn the_dashboard_is_one_that_grafana_takes() {
        let dashboard = dashboard();
        let panels = dashboard["panels"].as_array().expect("panels");
        let ids: BTreeSet<i64> = panels.iter().filter_map(|panel| panel["id"].as_i64()).collect();
        assert_eq!(ids.len(), panels.len(), "each panel has an id of its own");
        for panel in panels.iter().filter(|panel| panel["type"] != "row") {
            let title = &panel["title"];
            assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
            let place = &panel["gridPos"];
            let end = place["x"].as_i64().zip(place["w"].as_i64()).map(|(x, w)| x + w);
            assert!(end.is_some_and(|end| end <= 24), "{title}: {place}");
            let targets = panel["targets"].as_array().expect("targets");
            for target in targets {
                let query = target["expr"].as_str().expect("a query");
                assert!(query.contains("$job"), "{title} mixes cells: {query}");
            }
            assert!(!targets.is_empty(), "{title}");
        }
        // The four of the service.
        let text = dashboard.to_string();
        for name in ["issuance", "lease_renewal", "clock_sync"] {
            assert!(text.contains(&format!("idgen:{name}:bad")), "{name} is not shown");
        }
        assert!(text.contains("idgen_duplicate_key_errors_total"));
    }
}
