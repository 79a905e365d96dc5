-- The measuring loop. CPU time of this backend comes from /proc/self/schedstat (its first number is the
-- time on a CPU in ns), beside the wall clock. A round runs every candidate once, so that a noisy minute
-- hits all of them; medians over the rounds are compared, the empty loop subtracted.
CREATE TABLE bench_sample (
    name  text             NOT NULL,
    round int              NOT NULL,
    calls bigint           NOT NULL,
    wall_ns double precision NOT NULL,
    cpu_ns  double precision NOT NULL
);

CREATE FUNCTION bench_cpu_ns() RETURNS double precision
LANGUAGE sql VOLATILE
AS $$ SELECT split_part(pg_read_file('/proc/self/schedstat'), ' ', 1)::double precision $$;

CREATE FUNCTION bench_wall_ns() RETURNS double precision
LANGUAGE sql VOLATILE
AS $$ SELECT extract(epoch FROM clock_timestamp())::double precision * 1e9 $$;

-- One timing of one statement.
CREATE PROCEDURE bench_time(name text, round int, calls bigint, statement text)
LANGUAGE plpgsql
AS $$
DECLARE
    wall double precision := bench_wall_ns();
    cpu  double precision := bench_cpu_ns();
BEGIN
    EXECUTE statement;
    INSERT INTO bench_sample VALUES (name, round, calls, bench_wall_ns() - wall, bench_cpu_ns() - cpu);
END $$;

-- Round 0 warms up and is thrown away.
CREATE PROCEDURE bench_calls(rounds int, calls bigint, candidates text[])
LANGUAGE plpgsql
AS $$
DECLARE
    candidate text[];
    nth int;
BEGIN
    FOR nth IN 0..rounds LOOP
        FOREACH candidate SLICE 1 IN ARRAY candidates LOOP
            CALL bench_time(candidate[1], nth, calls, format(
                'SELECT count(%s) FROM (SELECT generate_series(1, %s) AS g) t', candidate[2], calls));
        END LOOP;
        COMMIT;
    END LOOP;
    DELETE FROM bench_sample WHERE round = 0;
END $$;

CREATE PROCEDURE bench_inserts(rounds int, calls bigint, candidates text[])
LANGUAGE plpgsql
AS $$
DECLARE
    candidate text[];
    nth int;
BEGIN
    FOR nth IN 1..rounds LOOP
        FOREACH candidate SLICE 1 IN ARRAY candidates LOOP
            EXECUTE format('DROP TABLE IF EXISTS bench_target; CREATE TABLE bench_target (id %s, n int)', candidate[2]);
            COMMIT;
            CALL bench_time(candidate[1], nth, calls,
                format('INSERT INTO bench_target (n) SELECT generate_series(1, %s)', calls));
            INSERT INTO bench_index
                SELECT candidate[1], pg_relation_size(indexrelid)
                  FROM pg_index WHERE indrelid = 'bench_target'::regclass;
            COMMIT;
        END LOOP;
    END LOOP;
END $$;

-- COPY of a file of this server, with the key from each of the defaults, or (third word: a batch function) with
-- keys that were asked for before and are in the file. file: where the server may write.
CREATE PROCEDURE bench_copies(rounds int, calls bigint, file text, candidates text[])
LANGUAGE plpgsql
AS $$
DECLARE
    candidate text[];
    nth int;
BEGIN
    EXECUTE format('COPY (SELECT g FROM generate_series(1, %s) g) TO %L', calls, file);
    FOR nth IN 0..rounds LOOP
        FOREACH candidate SLICE 1 IN ARRAY candidates LOOP
            EXECUTE format('DROP TABLE IF EXISTS bench_target; CREATE TABLE bench_target (id %s, n int)', candidate[2]);
            COMMIT;
            IF candidate[3] = '' THEN
                CALL bench_time(candidate[1], nth, calls, format('COPY bench_target (n) FROM %L', file));
            ELSE
                CALL bench_time(candidate[1] || ': making the file', nth, calls,
                    format('COPY (SELECT id, n FROM %s(%s) WITH ORDINALITY b (id, n)) TO %L', candidate[3], calls, file || '.ids'));
                CALL bench_time(candidate[1], nth, calls, format('COPY bench_target (id, n) FROM %L', file || '.ids'));
            END IF;
            COMMIT;
        END LOOP;
    END LOOP;
    DELETE FROM bench_sample WHERE round = 0;
END $$;

CREATE TABLE bench_index (name text NOT NULL, bytes bigint NOT NULL);
-- Rates that pgbench measured: statements per second with one and with two clients.
CREATE TABLE bench_scaling (name text NOT NULL, clients int NOT NULL, tps double precision NOT NULL);

CREATE VIEW bench_median AS
    SELECT name,
           percentile_cont(0.5) WITHIN GROUP (ORDER BY wall_ns / calls) AS wall_ns,
           percentile_cont(0.5) WITHIN GROUP (ORDER BY cpu_ns / calls) AS cpu_ns
      FROM bench_sample GROUP BY name;

CREATE SEQUENCE bench_plain;
