-- Periods: their ids and starts, tasks for them, and those that had none.
-- (What pg_cron makes of it: test/t/110_schedules.pl.)
CREATE EXTENSION taskoutbox;
SET TimeZone = 'America/New_York';
SET DateStyle = 'ISO';

-- What they look like
SELECT p, taskoutbox.period_id('x', p, at => '2026-11-29 14:35:10Z'), taskoutbox.period_start(p, at => '2026-11-29 14:35:10Z') AT TIME ZONE 'UTC' AS start
FROM unnest('{quarter-hour,hour,day,week,month,quarter,year}'::text[]) p;
SELECT taskoutbox.period_id('account.apply-daily-interest', 'day', at => '2026-11-29 00:00Z'),
	taskoutbox.period_id('account.close', 'month', at => '2026-11-30 23:59:59.999999Z');
SELECT p, taskoutbox.period_id('x', p, 'Asia/Kathmandu', '2026-12-31 18:20Z'),
	taskoutbox.period_start(p, 'Asia/Kathmandu', '2026-12-31 18:20Z') AT TIME ZONE 'Asia/Kathmandu' AS start
FROM unnest('{quarter-hour,hour,day,week,month,quarter,year}'::text[]) p;
-- The time is now() if it is not given, and the zone is UTC.
SELECT taskoutbox.period_id('x', 'day') = 'x-' || to_char(now() AT TIME ZONE 'UTC', 'YYYY-MM-DD') AS today,
	taskoutbox.period_start('day') = date_trunc('day', now() AT TIME ZONE 'UTC') AT TIME ZONE 'UTC' AS since_midnight,
	taskoutbox.period_id('x', 'day', 'europe/berlin') = taskoutbox.period_id('x', 'day', 'Europe/Berlin') AS any_case;

-- What is wrong with an argument
SELECT taskoutbox.period_id('x', 'dya');
SELECT taskoutbox.period_id('x', 'Day');
SELECT taskoutbox.period_start('day', 'Europe/Berln');
SELECT taskoutbox.period_start('day', 'UTC+2');
SELECT taskoutbox.period_start('day', 'Europe/Berlin1');
SELECT taskoutbox.period_start('day', 'PST');
SELECT taskoutbox.period_start('day', 'right/UTC');
SELECT taskoutbox.period_start('day', at => 'infinity');
SELECT taskoutbox.period_start('day', at => '10000-01-01');
SELECT taskoutbox.period_start('day', at => '0001-01-01 BC');
SELECT taskoutbox.period_id(NULL, 'day');
SELECT taskoutbox.period_id('', 'day');
SELECT taskoutbox.period_id('x', NULL);
SELECT taskoutbox.period_id('x', 'day', NULL);
SELECT taskoutbox.period_id('x', 'day', at => NULL);
SELECT taskoutbox.period_id('two words', 'day');
SELECT taskoutbox.period_id('taskoutbox:x', 'day');
SELECT length(taskoutbox.period_id(repeat('x', 117), 'day'));
SELECT taskoutbox.period_id(repeat('x', 118), 'day');
-- The first and last of times
SELECT p, taskoutbox.period_id('x', p, z, t), taskoutbox.period_start(p, z, t) AT TIME ZONE z AS start
FROM unnest('{hour,week,year}'::text[]) p, unnest('{Pacific/Auckland,America/Sao_Paulo}'::text[]) z,
	unnest('{0001-01-03 00:00Z,9999-12-29 23:59:59Z}'::timestamptz[]) t;

-- C36: the days on which clocks are changed. Each has one id, and so have the
-- days beside it; the hour that is left out does not exist, and the one that
-- comes twice is two.
SELECT t, t AT TIME ZONE 'Europe/Berlin' AS berlin, taskoutbox.period_id('d', 'day', 'Europe/Berlin', t), taskoutbox.period_id('h', 'hour', 'Europe/Berlin', t)
FROM generate_series('2026-03-29 00:30Z'::timestamptz, '2026-03-29 01:30Z', '30 min') t;
SELECT t, t AT TIME ZONE 'Europe/Berlin' AS berlin, taskoutbox.period_id('d', 'day', 'Europe/Berlin', t), taskoutbox.period_id('h', 'hour', 'Europe/Berlin', t)
FROM generate_series('2026-10-24 23:30Z'::timestamptz, '2026-10-25 02:00Z', '30 min') t;
SELECT z, d, count(DISTINCT taskoutbox.period_id('d', 'day', z, h)) AS days, count(DISTINCT taskoutbox.period_id('h', 'hour', z, h)) AS hours
FROM (VALUES ('Europe/Berlin', date '2026-03-29'), ('Europe/Berlin', '2026-10-25'),
	('Pacific/Auckland', '2026-04-05'), ('Pacific/Auckland', '2026-09-27'),
	('America/Sao_Paulo', '2018-02-17'), ('America/Sao_Paulo', '2018-11-04'),
	('America/Havana', '2018-11-04'), ('Australia/Lord_Howe', '2026-04-05')) AS v (z, d),
	generate_series(d::timestamp AT TIME ZONE 'UTC' - interval '1 day', d + 2, '15 min') h
WHERE (h AT TIME ZONE z)::date = d
GROUP BY 1, 2 ORDER BY 1, 2;
-- Midnight is left out, and midnight comes twice.
SELECT taskoutbox.period_start('day', 'America/Sao_Paulo', '2018-11-04 12:00Z') AT TIME ZONE 'UTC' AS one_oclock,
	taskoutbox.period_start('day', 'America/Havana', '2018-11-04 04:30Z') AT TIME ZONE 'UTC' AS first_midnight,
	taskoutbox.period_start('day', 'America/Havana', '2018-11-04 05:30Z') AT TIME ZONE 'UTC' AS and_the_second;

-- Every hour of eight years (of one year, every quarter of an hour), in zones that
-- change their clocks, and by how much: exactly one id per local period and one
-- start; the server's own calendar says what the periods are. A piece of time is
-- told apart by its offset, too.
CREATE VIEW moment AS
SELECT z AS zone, p AS period, t, taskoutbox.period_id('x', p, z, t) AS id, taskoutbox.period_start(p, z, t) AS start,
	CASE p WHEN 'quarter-hour' THEN date_bin('15 min', t AT TIME ZONE z, '2000-01-01') ELSE date_trunc(p, t AT TIME ZONE z) END AS local,
	CASE WHEN p IN ('quarter-hour', 'hour') THEN (t AT TIME ZONE z) - (t AT TIME ZONE 'UTC') END AS utc_offset
FROM (VALUES ('Pacific/Auckland', 2023, 2031), ('America/Sao_Paulo', 2023, 2031), ('Europe/Berlin', 2023, 2031), ('Asia/Kathmandu', 2023, 2031),
		('Australia/Lord_Howe', 2026, 2027), ('America/Havana', 2026, 2027)) AS v (z, first, last),
	unnest('{quarter-hour,hour,day,week,month,quarter,year}'::text[]) p,
	generate_series(make_timestamptz(CASE p WHEN 'quarter-hour' THEN 2026 ELSE first END, 1, 1, 0, 0, 0, 'UTC'),
		make_timestamptz(CASE p WHEN 'quarter-hour' THEN 2027 ELSE last END, 1, 1, 0, 0, 0, 'UTC') - interval '1 s',
		CASE p WHEN 'quarter-hour' THEN interval '15 min' ELSE '1 hour' END) t;
CREATE TEMP TABLE local_period AS
SELECT zone, period, id, start, local, utc_offset, min(t) AS first FROM moment GROUP BY 1, 2, 3, 4, 5, 6;
SELECT zone, period, count(*) AS periods, count(DISTINCT id) = count(*) AS one_id, count(DISTINCT start) = count(*) AS one_start,
	count(DISTINCT (local, utc_offset)) = count(*) AS as_in_the_calendar
FROM local_period GROUP BY 1, 2 ORDER BY 1, array_position('{quarter-hour,hour,day,week,month,quarter,year}', period);
-- The start is in its own period, not after its moments, and what is before it is
-- in another.
SELECT count(*) AS periods,
	bool_and(start <= first AND taskoutbox.period_start(period, zone, start) = start AND taskoutbox.period_id('x', period, zone, start) = id) AS starts_in_itself,
	bool_and(taskoutbox.period_id('x', period, zone, start - interval '1 us') <> id) AS not_before
FROM local_period;
DROP TABLE local_period;

-- C32: whatever a session's settings are. At 11:59 and 12:01 UTC it is another day
-- in Auckland.
CREATE FUNCTION digest() RETURNS text LANGUAGE sql AS $$
	SELECT md5(string_agg(id || extract(epoch FROM start), ',' ORDER BY zone, period, t)) FROM moment WHERE t BETWEEN '2026-03-01 00:00Z' AND '2026-05-01 00:00Z' $$;
SELECT digest() AS here \gset
SET TimeZone = 'Pacific/Auckland';
SET DateStyle = 'German';
SELECT digest() = :'here' AS same;
SELECT taskoutbox.period_id('x', 'day', at => '2026-06-01 11:59Z'), taskoutbox.period_id('x', 'day', at => '2026-06-01 12:01Z'),
	taskoutbox.period_id('x', 'day', 'Pacific/Auckland', '2026-06-01 11:59Z'), taskoutbox.period_id('x', 'day', 'Pacific/Auckland', '2026-06-01 12:01Z');
SET TimeZone = 'UTC';
SET DateStyle = 'ISO';
SELECT digest() = :'here' AS same;
SELECT taskoutbox.period_id('x', 'day', at => '2026-06-01 11:59Z'), taskoutbox.period_id('x', 'day', at => '2026-06-01 12:01Z'),
	taskoutbox.period_id('x', 'day', 'Pacific/Auckland', '2026-06-01 11:59Z'), taskoutbox.period_id('x', 'day', 'Pacific/Auckland', '2026-06-01 12:01Z');
DROP FUNCTION digest();
DROP VIEW moment;


--
-- enqueue_period
--

SELECT taskoutbox.create_queue('reports', deduplication_window => '500 days');
\set VERBOSITY terse
SELECT now() - interval '1 day' AS yesterday, now() - interval '2 days' AS two_days_ago \gset
-- Whichever period the time is in, once, however often and however late
SELECT duplicate FROM taskoutbox.enqueue_period('report.build', 'day', '{"a": 1}', at => :'yesterday', timezone => 'Europe/Berlin');
SELECT duplicate FROM taskoutbox.enqueue_period('report.build', 'day', '{"a": 2}', at => taskoutbox.period_start('day', 'Europe/Berlin', :'yesterday'), timezone => 'Europe/Berlin');
SELECT duplicate FROM taskoutbox.enqueue('report.build', deduplication_id => taskoutbox.period_id('report.build', 'day', 'Europe/Berlin', :'yesterday'),
	deduplication_window => '400 days');
-- Another period, another kind of period, another zone, another queue: another task
SELECT duplicate FROM taskoutbox.enqueue_period('report.build', 'day', at => :'two_days_ago', timezone => 'Europe/Berlin');
SELECT duplicate FROM taskoutbox.enqueue_period('report.build', 'month', group_id => 'g');
SELECT duplicate FROM taskoutbox.enqueue_period('report.build', 'quarter-hour', timezone => 'Asia/Kathmandu');
SELECT duplicate FROM taskoutbox.enqueue_period('report.build', 'day', at => :'yesterday', timezone => 'Europe/Berlin', queue => 'reports');
-- The message says which period it is for, and when that began: by the clocks of
-- the zone, and a valid time.
SELECT task_type, queue, group_id, payload, headers ->> 'period' AS period, headers ->> 'timezone' AS timezone,
	deduplication_id = taskoutbox.period_id('report.build', headers ->> 'period', headers ->> 'timezone', (headers ->> 'period_start')::timestamptz) AS same_id,
	(headers ->> 'period_start')::timestamptz = taskoutbox.period_start(headers ->> 'period', headers ->> 'timezone', (headers ->> 'period_start')::timestamptz) AS its_start
FROM taskoutbox.task_outbox ORDER BY id;
SELECT id FROM taskoutbox.enqueue_period('fixed', 'hour', timezone => 'Asia/Kathmandu') \gset
SELECT headers ->> 'period_start' ~ '^\d{4}-\d\d-\d\dT\d\d:00:00\+05:45$' AS iso FROM taskoutbox.task_outbox WHERE id = :id;
-- The id is taken for 400 days, or as long as the queue says if that is longer, and
-- counted from the period's start when that is still to come.
SELECT queue, round(extract(epoch FROM expires_at - now()) / 86400) AS days FROM taskoutbox.deduplication
WHERE deduplication_id = taskoutbox.period_id('report.build', 'day', 'Europe/Berlin', :'yesterday') ORDER BY queue;
SELECT id FROM taskoutbox.enqueue_period('ahead', 'day', at => now() + interval '300 days') \gset
SELECT expires_at - taskoutbox.period_start('day', at => now() + interval '300 days') BETWEEN interval '399 days 23:59' AND '400 days 00:01' AS taken_beyond
FROM taskoutbox.deduplication WHERE task_id = :id;

-- Errors. What enqueue refuses names the task in its context.
\set VERBOSITY default
SELECT taskoutbox.enqueue_period('x', 'fortnight');
SELECT taskoutbox.enqueue_period('x', 'day', timezone => 'Mars/Olympus');
SELECT taskoutbox.enqueue_period('x', 'day', at => NULL);
SELECT taskoutbox.enqueue_period('x', NULL);
SELECT taskoutbox.enqueue_period(NULL, 'day');
SELECT taskoutbox.enqueue_period('two words', 'day');
SELECT taskoutbox.enqueue_period(repeat('x', 118), 'day');
\set VERBOSITY terse
SELECT taskoutbox.enqueue_period('x', 'day', at => now() - interval '402 days');
SELECT taskoutbox.enqueue_period('x', 'day', at => now() + interval '402 days');
\set VERBOSITY default
SELECT taskoutbox.enqueue('x', jsonb_build_object('a', repeat('x', 300000)), deduplication_id => 'x-1');
SELECT taskoutbox.enqueue('x', jsonb_build_object('a', repeat('x', 300000)));
SELECT taskoutbox.enqueue('x', deduplication_id => 'x-2026', queue => 'nowhere');
SELECT id > 0 AS fine, taskoutbox.cancel(id) FROM taskoutbox.enqueue('x', deduplication_id => 'x-2');
-- and what fails afterwards does not.
SELECT 1 / (id - id) FROM taskoutbox.enqueue('x');


--
-- missed_periods
--

-- Since the first that had one: three days ago, and today is not over.
SELECT duplicate FROM taskoutbox.enqueue_period('daily', 'day', at => now() - interval '5 days');
SELECT duplicate FROM taskoutbox.enqueue_period('daily', 'day', at => now() - interval '3 days');
SELECT period_id = taskoutbox.period_id('daily', 'day', at => period_start) AS id, date_trunc('day', now() AT TIME ZONE 'UTC') - (period_start AT TIME ZONE 'UTC') AS ago
FROM taskoutbox.missed_periods('daily', 'day');
-- Since a time, also before the first
SELECT date_trunc('day', now() AT TIME ZONE 'UTC') - (period_start AT TIME ZONE 'UTC') AS ago
FROM taskoutbox.missed_periods('daily', 'day', since => taskoutbox.period_start('day', at => now() - interval '7 days'));
SELECT date_trunc('day', now() AT TIME ZONE 'UTC') - (period_start AT TIME ZONE 'UTC') AS ago
FROM taskoutbox.missed_periods('daily', 'day', since => taskoutbox.period_start('day', at => now() - interval '2 days') + interval '1 s');
SELECT count(*) FROM taskoutbox.missed_periods('daily', 'day', since => now());
SELECT count(*) FROM taskoutbox.missed_periods('daily', 'day', since => now() - interval '399 days');
-- Nobody knows it in another queue, another zone, under another name.
SELECT count(*) FROM taskoutbox.missed_periods('daily', 'day', queue => 'reports');
SELECT count(*) FROM taskoutbox.missed_periods('daily', 'week');
SELECT count(*) FROM taskoutbox.missed_periods('weekly', 'day');
-- Fill them with one call; a second one adds nothing.
SELECT count(*), count(*) FILTER (WHERE e.duplicate) AS duplicates
FROM taskoutbox.missed_periods('daily', 'day') m, LATERAL taskoutbox.enqueue_period('daily', 'day', at => m.period_start) e;
SELECT count(*) FROM taskoutbox.missed_periods('daily', 'day');
\set VERBOSITY terse
SELECT duplicate FROM taskoutbox.enqueue_period('daily', 'day', at => now() - interval '1 day');
\set VERBOSITY default
-- Or take an id without a task: that period shall have none.
SELECT e.duplicate, taskoutbox.cancel(e.id) FROM taskoutbox.enqueue_period('daily', 'day', at => now() - interval '6 days') e WHERE NOT e.duplicate;
SELECT date_trunc('day', now() AT TIME ZONE 'UTC') - (period_start AT TIME ZONE 'UTC') AS ago
FROM taskoutbox.missed_periods('daily', 'day', since => taskoutbox.period_start('day', at => now() - interval '7 days'));
-- A cancelled task, or one that is done, is not missed.
SELECT taskoutbox.purge('default') > 0 AS purged;
SELECT count(*) FROM taskoutbox.missed_periods('daily', 'day');
-- The finest periods of 400 days
SELECT duplicate FROM taskoutbox.enqueue_period('often', 'quarter-hour', at => taskoutbox.period_start('quarter-hour') - interval '399 days');
SELECT count(*) FROM taskoutbox.missed_periods('often', 'quarter-hour');

-- A test's scope hides what others did, and is hidden from them.
SET taskoutbox.deduplication_scope = 'test/';
SELECT count(*) FROM taskoutbox.missed_periods('daily', 'day', since => taskoutbox.period_start('day', at => now() - interval '2 days'));
SELECT duplicate FROM taskoutbox.enqueue_period('daily', 'day', at => now() - interval '1 day');
SELECT count(*) FROM taskoutbox.missed_periods('daily', 'day', since => taskoutbox.period_start('day', at => now() - interval '2 days'));
RESET taskoutbox.deduplication_scope;

-- Ids that are not kept prove nothing.
SELECT duplicate FROM taskoutbox.enqueue('short', deduplication_id => taskoutbox.period_id('short', 'day'));
SELECT * FROM taskoutbox.missed_periods('short', 'day');
SELECT * FROM taskoutbox.missed_periods('daily', 'day', since => now() - interval '401 days');
SELECT * FROM taskoutbox.missed_periods('daily', 'dayly');
SELECT * FROM taskoutbox.missed_periods('daily', 'day', 'CET+1');
SELECT * FROM taskoutbox.missed_periods('daily', 'day', since => 'infinity');
SELECT * FROM taskoutbox.missed_periods('daily', 'day', queue => 'nowhere');
SELECT * FROM taskoutbox.missed_periods('', 'day');
SELECT * FROM taskoutbox.missed_periods('two words', 'day');


--
-- schedule_status
--

-- There is no pg_cron here: nothing, and it says why.
SELECT * FROM taskoutbox.schedule_status;
-- Tables with its names that are not its own are not looked at.
CREATE ROLE regress_taskoutbox_mallory;
CREATE SCHEMA cron AUTHORIZATION regress_taskoutbox_mallory;
SET ROLE regress_taskoutbox_mallory;
CREATE FUNCTION cron.sprung() RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'trap! as %', current_user; END $$;
CREATE VIEW cron.job AS SELECT cron.sprung() AS jobid, ''::text AS jobname, ''::text AS schedule, 'taskoutbox.enqueue'::text AS command,
	''::text AS database, ''::text AS username, true AS active;
CREATE TABLE cron.job_run_details (jobid bigint, runid bigint, status text, return_message text, start_time timestamptz, end_time timestamptz);
RESET ROLE;
\set VERBOSITY terse
SELECT * FROM taskoutbox.schedule_status;
DROP VIEW cron.job;
CREATE TABLE cron.job ();
SELECT * FROM taskoutbox.schedule_status;
DROP SCHEMA cron CASCADE;
DROP ROLE regress_taskoutbox_mallory;

DROP EXTENSION taskoutbox;
