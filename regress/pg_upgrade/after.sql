-- On the new server, before anything else is drawn. Each line says what was found; what must not be is an error.
CREATE FUNCTION pg_temp.must(what text, holds boolean) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    IF holds IS NOT TRUE THEN
        RAISE EXCEPTION 'not so: %', what;
    END IF;
    RETURN what;
END $$;
CREATE TEMP TABLE known AS
    SELECT tag, max_id, tag_seq, (SELECT max(event_id) FROM idgen.audit_event) AS event_id FROM idgen.segment;

-- The first number of a tag after the upgrade, and what was recorded for it.
SELECT pg_temp.must('a tag goes on above its safety burn: ' || id || ' after ' || max_id, id > max_id + 2 * 10000)
  FROM known, idgen_segment('invoices') id WHERE tag = 'invoices';
SELECT pg_temp.must('the burn is recorded: ' || (payload->>'cause') || ', ids ' || lo || ' to ' || hi,
                    kind = 'segment.burn' AND lo = max_id + 1 AND e.event_id > k.event_id)
  FROM idgen.audit_event e JOIN known k USING (tag)
 WHERE tag = 'invoices' AND e.tag_seq > k.tag_seq AND kind <> 'segment.open' ORDER BY e.tag_seq LIMIT 1;
SELECT pg_temp.must('a tag whose burn is set to 0 goes on right above: ' || id, id = max_id + 1)
  FROM known, idgen_segment('exact') id WHERE tag = 'exact';
SELECT pg_temp.must('a tag that was never drawn from begins: ' || id, id >= 1) FROM idgen_segment('idle') id;
INSERT INTO invoice (n) SELECT generate_series(1, 3500);
SELECT pg_temp.must('a column goes on: ' || count(*) || ' rows', count(*) = 7000) FROM invoice;
SELECT pg_temp.must('a request key has its answer: ' || ids::text, ids = idgen_segment_range('invoices', 100, 'job-1')) FROM answered;
SELECT pg_temp.must('no two grants or burns overlap', count(*) = 0)
  FROM idgen.audit_event a JOIN idgen.audit_event b ON a.tag = b.tag AND a.space_id = b.space_id AND a.event_id < b.event_id
   AND int8range(a.lo, a.hi, '[]') && int8range(b.lo, b.hi, '[]')
 WHERE a.kind IN ('segment.grant', 'segment.burn') AND b.kind IN ('segment.grant', 'segment.burn');
SELECT pg_temp.must('an event of the database says why: ' || (payload->>'cause'), payload->>'cause' = 'another system identifier') FROM idgen.audit_event WHERE kind LIKE 'authority.%';

SET ROLE bob;
SELECT pg_temp.must('rights of roles are kept', idgen_segment('lent') > 0);
RESET ROLE;
INSERT INTO purchase (n) SELECT generate_series(1, 500);
SELECT pg_temp.must('an adopted column goes on: ' || count(*) || ' rows', count(*) = 2000) FROM purchase;
SELECT idgen_create_segment('gone') \g /dev/null
SELECT pg_temp.must('a dropped tag begins above what it had: ' || id, id > max_id) FROM known, idgen_segment('gone') id WHERE tag = 'gone';
SELECT idgen_drop_segment('gone') \g /dev/null
INSERT INTO public_id SELECT FROM generate_series(1, 10);
SELECT pg_temp.must('public ids and uuids go on', count(*) = 20) FROM public_id;

\connect shop
INSERT INTO basket (n) SELECT generate_series(1, 1500);
SELECT 'another database burns by itself: ' || (count(*) / (count(*) = 1)::int) FROM idgen.audit_event WHERE kind = 'segment.burn' AND tag = 'baskets';
