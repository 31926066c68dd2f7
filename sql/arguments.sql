-- Arguments, null or not, crash nothing and reach no internal error (case C46): every
-- function with all of its arguments, with each of them missing, and with none.
CREATE EXTENSION taskoutbox;

CREATE FUNCTION try_all(OUT calls integer, OUT succeeded integer, OUT internal text[]) LANGUAGE plpgsql AS $$
DECLARE
	f record;
	arguments text;
BEGIN
	calls := 0;
	succeeded := 0;
	FOR f IN SELECT p.oid, p.oid::regproc AS name, p.pronargs AS n, p.proargtypes::oid[] AS types FROM pg_proc p
		WHERE p.pronamespace = 'taskoutbox'::regnamespace AND p.prorettype <> 'trigger'::regtype
	LOOP
		FOR missing IN 0 .. f.n + 1 LOOP
			SELECT string_agg(CASE WHEN i = missing OR missing = f.n + 1 THEN 'NULL' ELSE
				quote_literal(CASE t::regtype::text WHEN 'jsonb' THEN '{}' WHEN 'text[]' THEN '{x}' WHEN 'interval' THEN '1 ms' WHEN 'boolean' THEN 'true'
					WHEN 'timestamp with time zone' THEN '2026-11-29 12:00Z' WHEN 'regprocedure' THEN 'lower(text)' WHEN 'text' THEN 'default' ELSE '1' END)
				END || '::' || t::regtype, ', ' ORDER BY i) INTO arguments
			FROM unnest(f.types) WITH ORDINALITY a (t, i);
			calls := calls + 1;
			BEGIN
				EXECUTE format('SELECT count(*) FROM %s(%s)', f.name, arguments);
				succeeded := succeeded + 1;
				RAISE EXCEPTION USING ERRCODE = 'P9999';
			EXCEPTION WHEN OTHERS THEN
				IF SQLSTATE LIKE 'XX%' OR SQLSTATE LIKE '22%' THEN
					internal := array_append(internal, format('%s(%s): %s %s', f.name, arguments, SQLSTATE, SQLERRM));
				END IF;
			END;
		END LOOP;
	END LOOP;
END
$$;
SET client_min_messages = error;
SELECT calls > 100 AS many, succeeded > 20 AS some_good, internal FROM try_all();
RESET client_min_messages;
DROP FUNCTION try_all;

DROP EXTENSION taskoutbox;
