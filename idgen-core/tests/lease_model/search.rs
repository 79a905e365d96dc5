//! Breadth first, each state once, until nothing is new or the bound is reached.

use std::collections::{BTreeSet, HashMap};
use std::fmt;

use crate::always::always;
use crate::scenario::Scenario;
use crate::steps::{Step, steps};
use crate::world::State;

/// What a search has seen.
#[derive(Debug)]
pub struct Seen {
    pub states: usize,
    /// Every state that can be reached was followed; else the bound ended it.
    pub exhausted: bool,
    /// Kinds of steps that happened.
    pub kinds: BTreeSet<&'static str>,
    /// The first harm, and a shortest way to it.
    pub harm: Option<Harm>,
}

#[derive(Debug)]
pub struct Harm {
    pub rule: &'static str,
    pub trace: Vec<Step>,
}

impl fmt::Display for Harm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} after {} steps:", self.rule, self.trace.len())?;
        self.trace.iter().try_for_each(|step| write!(f, "\n    {step:?}"))
    }
}

/// Where a state came from.
type Way = (usize, Step);

/// Follows every order of steps that the scenario allows, up to so many states.
pub fn explore(scenario: &Scenario, states_max: usize) -> Seen {
    let first = State::new();
    let mut known = HashMap::from([(first, 0)]);
    let mut states = vec![first];
    let mut ways: Vec<Option<Way>> = vec![None];
    let mut kinds = BTreeSet::new();
    let mut next = 0;
    let mut harm = None;
    while next < states.len() && states.len() < states_max && harm.is_none() {
        let state = states[next];
        for (step, outcome) in steps(scenario, &state) {
            kinds.insert(step.kind());
            let outcome = outcome.and_then(|reached| match scenario.broken {
                None => always(step, &state, &reached).map(|()| reached),
                // The harm to be found is a duplicate, which comes later than a broken rule.
                Some(_) => Ok(reached),
            });
            let reached = match outcome {
                Ok(reached) => reached,
                Err(rule) => {
                    harm = harm.or(Some(Harm {
                        rule,
                        trace: trace(&ways, next, step),
                    }));
                    continue;
                }
            };
            let states_before = states.len();
            known.entry(reached).or_insert_with(|| {
                states.push(reached);
                ways.push(Some((next, step)));
                states_before
            });
        }
        next += 1;
    }
    Seen {
        states: states.len(),
        exhausted: harm.is_none() && next == states.len(),
        kinds,
        harm,
    }
}

fn trace(ways: &[Option<Way>], from: usize, last: Step) -> Vec<Step> {
    let mut trace = vec![last];
    let mut at = from;
    while let Some((before, step)) = ways[at] {
        trace.push(step);
        at = before;
    }
    trace.reverse();
    trace
}
