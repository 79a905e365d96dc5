-- The daemon's control functions. Contract version 1: see idgen-core/src/contract.rs.
-- Nothing here is executable by PUBLIC; idgen.grant_daemon(role) opens it for the daemon's role.

CREATE FUNCTION idgen.server_clock(
    OUT boot_id uuid, OUT boottime_ms bigint, OUT wall_ms bigint, OUT in_recovery boolean,
    OUT cell_id uuid, OUT extension_version text, OUT contract_version integer)
RETURNS record
LANGUAGE c VOLATILE PARALLEL RESTRICTED
AS 'MODULE_PATHNAME', 'idgen_server_clock';
COMMENT ON FUNCTION idgen.server_clock() IS
'Daemon: identity of this shared memory and readings of this server''s clocks. boot_id is random and new whenever shared memory is (also after a crash-restart); boottime_ms is CLOCK_BOOTTIME and wall_ms CLOCK_REALTIME, both in ms, of the Postgres host; cell_id is the cell whose leases this data directory has had (file pg_idgen_cell); NULL before the first install. The call also counts as a sign of life of the daemon (idgen.lease_wait_ms). Error: IG011 not preloaded.';

CREATE FUNCTION idgen.note_clock(state text, reason text, offset_us bigint, error_us bigint)
RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idgen_note_clock';
COMMENT ON FUNCTION idgen.note_clock(text, text, bigint, bigint) IS
'Daemon: what it knows of this server''s wall clock, for idgen.health, which forgets it after 30 s. offset_us: how far the clock is ahead of the true time, error_us: how far it is off at the most; NULL: not known. Longer texts are cut, to 32 and 160 bytes. Errors: IG011 not preloaded, 22004 NULL.';

CREATE FUNCTION idgen.note_drained(why text)
RETURNS void
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idgen_note_drained';
COMMENT ON FUNCTION idgen.note_drained(text) IS
'Daemon: an operator has drained this server (idgenctl server drain), and who, when and why, for idgen.health and for callers that get no id (IG050); NULL: nobody has, or it was resumed. Forgotten with this shared memory. Longer texts are cut, to 256 bytes. Error: IG011 not preloaded.';

CREATE FUNCTION idgen.claim_server(kind text)
RETURNS boolean
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idgen_claim_server';
COMMENT ON FUNCTION idgen.claim_server(text) IS
'Daemon: be the one that keeps the leases of this kind (worker, shard) on this server, whatever database it is connected to, until this session ends. Returns false while another session is. Needs a session of its own (no transaction pooling). Errors: IG011 not preloaded, 22023 another kind.';

CREATE FUNCTION idgen.anchors(OUT kind text, OUT anchor text, OUT age_ms bigint)
RETURNS SETOF record
LANGUAGE c VOLATILE STRICT PARALLEL RESTRICTED ROWS 2
AS 'MODULE_PATHNAME', 'idgen_anchors';
COMMENT ON FUNCTION idgen.anchors() IS
'Daemon: how far the lease store had come when leases of a kind (worker, shard) were last installed or extended here: anchor2, cell, store, epoch, its name, when it began (Unix ms), revision, a row and its revision, plan of formats, checksum. From the files pg_idgen_anchor.* of the data directory. age_ms: how long ago at the most, by CLOCK_BOOTTIME, the store was asked for the grant or renewal that it tells of; NULL: not known, or the host was booted since. Error: IG107 a file is torn or was changed.';

CREATE FUNCTION idgen.store_anchor(boot_id uuid, kind text, anchor text, asked_ms bigint DEFAULT 0)
RETURNS boolean
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idgen_store_anchor';
COMMENT ON FUNCTION idgen.store_anchor(uuid, text, text, bigint) IS
'Daemon: write down how far the lease store has come, before a lease is opened or extended; on disk when it returns. Never goes back. asked_ms: a reading of this server''s CLOCK_BOOTTIME, in ms, from before the store was asked for the grant or renewal that the anchor tells of; 0: not known. The next daemon need not wait where that was a moment ago. Returns false when it is written down already. Errors: IG101 another boot id, IG105 another cell than this data directory belongs to, IG107 the anchor goes back, or the file is torn or was changed, 58030 it could not be written to disk, IG011 not preloaded, IG012 in recovery, 22023 bad argument.';

CREATE FUNCTION idgen.install_lease(
    contract integer, boot_id uuid, cell_id uuid, formats text, kind text, identity integer,
    token_epoch bigint, token_revision bigint, floor_ms bigint, ceiling_ms bigint, deadline_ms bigint,
    anchor_wall_ms bigint, anchor_boottime_ms bigint)
RETURNS boolean
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idgen_install_lease';
COMMENT ON FUNCTION idgen.install_lease(integer, uuid, uuid, text, text, integer, bigint, bigint, bigint, bigint, bigint, bigint, bigint) IS
'Daemon: open a leased identity for minting. Ids carry timestamps in [floor_ms, ceiling_ms] (Unix ms) and are minted until deadline_ms (CLOCK_BOOTTIME of this server, ms). formats: for a worker the format plan of the cell, as "classic" or "classic; regional/1 from 1790000000000" (Unix ms; the server follows it before it opens the lease), for a shard "sharded". The token is (epoch, revision), compared in that order. anchor_*: a reading of server_clock() whose wall time the daemon has found good. Returns true when installed, false when the very same token is installed already. Errors: IG101 another boot id, IG102 token not newer, IG103 floor not above what was minted, IG104 deadline passed, IG105 another cell than this data directory belongs to, IG109 a cell of another region, 58030 the cell could not be written to disk, IG106 contract version, IG009 format mismatch, IG010 end of epoch, IG011 not preloaded, IG012 in recovery, 22023 bad argument.';

CREATE FUNCTION idgen.extend_lease(
    contract integer, boot_id uuid, formats text, kind text, identity integer,
    token_epoch bigint, token_revision bigint, ceiling_ms bigint, deadline_ms bigint,
    anchor_wall_ms bigint, anchor_boottime_ms bigint)
RETURNS boolean
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idgen_extend_lease';
COMMENT ON FUNCTION idgen.extend_lease(integer, uuid, text, text, integer, bigint, bigint, bigint, bigint, bigint, bigint) IS
'Daemon: raise ceiling and deadline of the token that is installed; never lowers either, never opens a closed one; a ceiling more than a day ahead of this server''s clock is cut to that. formats: as for install_lease(). anchor_* NULL: the wall clock was not found good, keep the older anchor. Returns false when that token is not the open one here (the daemon must then take a new one). Errors: IG101 another boot id, IG109 a cell of another region, 58030 the region could not be written to disk, IG106 contract version, IG009 format mismatch, IG011 not preloaded, 22023 bad argument, 22004 NULL.';

CREATE FUNCTION idgen.fence_lease(
    boot_id uuid, kind text, identity integer, token_epoch bigint, token_revision bigint)
RETURNS bigint
LANGUAGE c VOLATILE STRICT PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'idgen_fence_lease';
COMMENT ON FUNCTION idgen.fence_lease(uuid, text, integer, bigint, bigint) IS
'Daemon: close this token now. After the call returns no id of it is minted. Returns the exact last millisecond (Unix ms) that it may have minted in (floor - 1 when it minted nothing, or floor where a token before it had been closed right below), or NULL when that token is not the latest one installed. Errors: IG101 another boot id, IG011 not preloaded, 22023 bad argument.';

CREATE FUNCTION idgen.slot_states(
    OUT kind text, OUT identity integer, OUT state text, OUT generation integer,
    OUT token_epoch bigint, OUT token_revision bigint,
    OUT floor_ms bigint, OUT last_ms bigint, OUT ceiling_ms bigint,
    OUT deadline_ms bigint, OUT deadline_in_ms bigint, OUT ids bigint)
RETURNS SETOF record
LANGUAGE c VOLATILE STRICT PARALLEL RESTRICTED ROWS 8
AS 'MODULE_PATHNAME', 'idgen_slot_states';
COMMENT ON FUNCTION idgen.slot_states() IS
'Every identity (worker or shard) that was installed since this shared memory was made. state: open, expired (deadline passed), fenced. *_ms are Unix ms except deadline_ms (CLOCK_BOOTTIME ms); last_ms is floor_ms - 1, at the most floor_ms, when nothing was minted; ids: minted since idgen.reset_stats(). Without shared memory: no rows.';
