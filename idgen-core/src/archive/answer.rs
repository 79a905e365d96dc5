//! What to do after a conditional create was answered, or not.

/// What came back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It was made.
    Created,
    /// There is one already (412). It may be ours: the answer to an earlier try was lost.
    Exists,
    /// Another request for the same name was under way (409): nothing is known.
    Conflict,
    /// None, or one that says nothing of what was done (timeout, reset, 500).
    Lost,
}

/// What is there when it is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// What we wanted to be there.
    Ours,
    /// Something else.
    Theirs,
    /// Nothing.
    Nothing,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It is done.
    Done,
    /// Look what is there.
    Look,
    /// Try once more.
    Again,
    /// Somebody else was faster: theirs counts, and what we had is thrown away.
    Adopt,
}

/// After a try.
#[must_use]
pub const fn after_answer(answer: Answer) -> Step {
    match answer {
        Answer::Created => Step::Done,
        Answer::Exists | Answer::Lost => Step::Look,
        Answer::Conflict => Step::Again,
    }
}

/// After a look.
#[must_use]
pub const fn after_look(found: Found) -> Step {
    match found {
        Found::Ours => Step::Done,
        Found::Theirs => Step::Adopt,
        Found::Nothing => Step::Again,
    }
}
