//! A place whose answers a test writes: what goes wrong, and when.

use super::{Keep, Meta, ObjectError, ObjectErrorKind, Objects, Result};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

/// What happens to the next request whose key has a text in it.
#[derive(Clone, Copy, Debug)]
pub enum Happens {
    /// It is done, as ever.
    Done,
    /// It is not done, and this comes back.
    Refused(ObjectErrorKind),
    /// It is done, and the answer is lost.
    AnswerLost,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Bytes>,
    script: VecDeque<(&'static str, &'static str, Happens)>,
    log: Vec<String>,
}

/// Objects in memory.
#[derive(Clone, Default)]
pub struct Scripted(Arc<Mutex<State>>);

impl Scripted {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next request of this verb (`put`, `get`, `head`, `list`) for a key with this in it.
    pub fn next(&self, verb: &'static str, key_has: &'static str, happens: Happens) {
        self.state().script.push_back((verb, key_has, happens));
    }

    pub fn keys(&self) -> Vec<String> {
        self.state().objects.keys().cloned().collect()
    }

    pub fn change(&self, key: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let mut state = self.state();
        let mut bytes = state.objects[key].to_vec();
        change(&mut bytes);
        state.objects.insert(key.to_owned(), bytes.into());
    }

    /// Verb and key of each request so far.
    pub fn log(&self) -> Vec<String> {
        self.state().log.clone()
    }

    fn step<T>(
        &self,
        verb: &'static str,
        key: &str,
        work: impl FnOnce(&mut State) -> Result<T>,
    ) -> Result<T> {
        let mut state = self.state();
        state.log.push(format!("{verb} {key}"));
        let scripted = state
            .script
            .iter()
            .position(|(of, has, _)| *of == verb && key.contains(has));
        match scripted.and_then(|at| state.script.remove(at)) {
            None | Some((.., Happens::Done)) => work(&mut state),
            Some((.., Happens::Refused(kind))) => Err(ObjectError::new(kind, format!("{key}: scripted"))),
            Some((.., Happens::AnswerLost)) => {
                let _ = work(&mut state);
                Err(ObjectError::new(
                    ObjectErrorKind::Lost,
                    format!("{key}: scripted"),
                ))
            }
        }
    }
}

impl Objects for Scripted {
    async fn put_if_absent(&self, key: &str, body: &Bytes, _keep: Keep) -> Result<()> {
        self.step("put", key, |state| {
            if state.objects.contains_key(key) {
                return Err(ObjectError::new(ObjectErrorKind::Exists, key));
            }
            state.objects.insert(key.to_owned(), body.clone());
            Ok(())
        })
    }

    async fn put(&self, key: &str, body: &Bytes) -> Result<()> {
        self.step("put", key, |state| {
            state.objects.insert(key.to_owned(), body.clone());
            Ok(())
        })
    }

    async fn get(&self, key: &str) -> Result<Bytes> {
        self.step("get", key, |state| {
            let found = state.objects.get(key).cloned();
            found.ok_or_else(|| ObjectError::new(ObjectErrorKind::Missing, key))
        })
    }

    async fn head(&self, key: &str) -> Result<Option<Meta>> {
        self.step("head", key, |state| {
            Ok(state.objects.get(key).map(|body| meta(key, body)))
        })
    }

    async fn list(&self, prefix: &str, after: Option<&str>) -> Result<Vec<Meta>> {
        self.step("list", prefix, |state| {
            let found = state
                .objects
                .iter()
                .filter(|(key, _)| key.starts_with(prefix) && after.is_none_or(|after| key.as_str() > after));
            Ok(found.map(|(key, body)| meta(key, body)).collect())
        })
    }

    async fn delete(&self, key: &str) -> Result<()> {
        self.step("delete", key, |state| {
            state.objects.remove(key);
            Ok(())
        })
    }
}

fn meta(key: &str, body: &Bytes) -> Meta {
    Meta {
        key: key.to_owned(),
        bytes: body.len() as u64,
        modified: None,
    }
}
