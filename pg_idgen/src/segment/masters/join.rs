//! `idgen.join_space()`: from now on this database grants the ids of one index of a space, above those that were granted
//! before the space was cut.

use super::{Space, refused, size_of};
use crate::call::Call;
use crate::error::{Error, clip};
use idgen_core::segment::Stripes;
use pgrx::spi::SpiClient;

/// What is to be joined.
pub struct Wish {
    space_id: [u8; 16],
    stripes: Stripes,
    above: i64,
}

impl Wish {
    pub fn from_args(call: Call) -> Result<Self, Error> {
        let null = |name| move || Error::NullArgument { name };
        let wrong = |message: String| Error::InvalidParameter {
            message,
            hint: "idgenctl stripes list shows how the space is cut, and whose which index is.",
        };
        let space_id = call.uuid(0).ok_or_else(null("space_id"))?;
        let stripe = call.integer(1).ok_or_else(null("stripe"))?;
        let count = call.integer(2).ok_or_else(null("stripes"))?;
        let size = call.bigint(3).ok_or_else(null("stripe_size"))?;
        let above = call.bigint(4).ok_or_else(null("above"))?;
        if count == 1 {
            return Err(wrong("one master needs no stripes; there are 2 to 64".into()));
        }
        let [index, count] = [("stripe", stripe), ("stripes", count)].map(|(name, value)| {
            u32::try_from(value).map_err(|_| wrong(format!("{name} must not be negative, not {value}")))
        });
        let size = u64::try_from(size).unwrap_or(0);
        let stripes = Stripes::new(index?, count?, size).map_err(|bad| wrong(bad.to_string()))?;
        if above < 0 {
            return Err(wrong(format!("above must not be negative, not {above}")));
        }
        Ok(Self {
            space_id,
            stripes,
            above,
        })
    }

    fn is_of(&self, space: &Space) -> bool {
        (space.identity.space_id, space.identity.stripes, space.above)
            == (self.space_id, self.stripes, self.above)
    }
}

/// Tags that do not count in these stripes yet, dropped ones too: their names may be used again.
const TAGS: &str = "
    SELECT s.tag, s.segment_id, s.max_id, s.stripe_count, s.needs_burn,
           s.max_id < s.start_id AND s.version = 1 AND NOT EXISTS (SELECT FROM idgen.adopted_sequence q WHERE q.tag = s.tag)
      FROM idgen.segment s
     WHERE (s.stripe_count, s.stripe_size) IS DISTINCT FROM ($1, $2)
     ORDER BY s.tag";

/// $3, $4: the space before, and now. What was granted before the space was cut is passed over.
const CUT: &str = "
    WITH cut AS (
        UPDATE idgen.segment s
           SET stripe_count = $1, stripe_size = $2, max_id = least(s.limit_id, greatest(s.max_id, $5)),
               role_space = CASE WHEN s.role_space = $3 THEN $4 ELSE s.role_space END,
               tag_seq = s.tag_seq + 1, version = s.version + 1, rate_since_ms = 0, rate_since_id = 0
          FROM idgen.segment old
         WHERE old.tag = s.tag AND ($3 <> $4 OR (s.stripe_count, s.stripe_size) IS DISTINCT FROM ($1, $2))
        RETURNING s.tag, s.tag_seq, s.segment_id, s.max_id, old.max_id AS before, old.stripe_count AS from_stripes)
    INSERT INTO idgen.audit_event (source_id, space_id, kind, tag, tag_seq, payload)
    SELECT p.source_id, p.space_id, 'segment.join', c.tag, c.tag_seq,
           jsonb_build_object('segment_id', c.segment_id, 'max_id_before', c.before, 'max_id', c.max_id,
                              'from_stripes', c.from_stripes, 'stripe', p.stripe, 'stripes', p.stripes,
                              'stripe_size', p.stripe_size)
      FROM cut c, idgen.space p ORDER BY c.tag";

const ALL: &str = "SELECT s.segment_id FROM idgen.segment s";

pub fn join(client: &mut SpiClient<'_>, space: &Space, wish: &Wish) -> Result<(), Error> {
    let is_of = wish.is_of(space);
    if !is_of && !space.identity.stripes.is_single() {
        let stripes = space.identity.stripes;
        return Err(refused(
            "this database is a master of a space already",
            format!(
                "It is master {} of {} of space {}, in stripes of {} ids.",
                stripes.index(),
                stripes.count(),
                pgrx::Uuid::from_bytes(space.identity.space_id),
                stripes.size()
            ),
            "Leave that space first (idgenctl stripes leave).",
        ));
    }
    let count = wish.stripes.count() as i32;
    let size = size_of(wish.stripes);
    let uncut = check_tags(client, space, wish)?;
    if is_of && uncut == 0 {
        return Ok(());
    }
    for segment in client.update(ALL, None, &[])? {
        if let Some(id) = segment.get::<pgrx::Uuid>(1)? {
            space.discard(*id.as_bytes());
        }
    }
    let before = pgrx::Uuid::from_bytes(space.identity.space_id);
    let now = space.move_to(client, Some(wish.space_id), wish.stripes, wish.above)?;
    let args = [
        count.into(),
        size.into(),
        before.into(),
        now.into(),
        wish.above.into(),
    ];
    client.update(CUT, None, &args)?;
    space.record(client, "space.join", None)
}

/// Nothing that this database has granted may be another master's. How many tags there are that do not count in
/// these stripes.
fn check_tags(client: &mut SpiClient<'_>, space: &Space, wish: &Wish) -> Result<usize, Error> {
    let args = [(wish.stripes.count() as i32).into(), size_of(wish.stripes).into()];
    let is_maker = space.identity.space_id == wish.space_id;
    let mut uncut = 0;
    for row in client.update(TAGS, None, &args)? {
        uncut += 1;
        let tag = clip(&row.get::<String>(1)?.unwrap_or_default());
        let id = row
            .get::<pgrx::Uuid>(2)?
            .map(|id| *id.as_bytes())
            .unwrap_or_default();
        let max_id = row.get::<i64>(3)?.unwrap_or(i64::MAX).max(space.published(id));
        let stripes = row.get::<i32>(4)?.unwrap_or_default();
        let has_arrived = row.get::<bool>(5)? == Some(true);
        let is_unused = row.get::<bool>(6)? == Some(true);
        if stripes != 1 {
            return Err(refused(
                format!("segment tag \"{tag}\" is cut in other stripes"),
                format!(
                    "Its ids up to {max_id} were granted in a space of {stripes} masters that is not cut as this one."
                ),
                "Join the space that it comes from, or make the database a space of its own: SELECT idgen.leave_space('why').",
            ));
        }
        if is_unused {
            continue;
        }
        if max_id > wish.above {
            return Err(refused(
                format!("segment tag \"{tag}\" has granted ids that are other masters'"),
                format!(
                    "It has granted ids up to {max_id}; the space is cut above {}.",
                    wish.above
                ),
                "The first claim of a space says above which id it is cut: idgenctl stripes claim --above, at least the highest max_id of idgen.segment.",
            ));
        }
        if !is_maker && !has_arrived {
            return Err(refused(
                format!("segment tag \"{tag}\" has granted ids in another space"),
                format!(
                    "It has granted ids up to {max_id}, which the master that made the space may have granted too."
                ),
                "Join with a database whose tags have granted nothing, or that was restored from a dump of that master.",
            ));
        }
    }
    Ok(uncut)
}
