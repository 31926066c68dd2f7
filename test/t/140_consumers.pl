# Consumer workers: controllers are called as their owners, in order, with retries,
# time limits and a fresh session, and what they leave behind gains nobody a right.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use TaskoutboxTest;
use Test::More;

my $node = new_node('consumers', conf => "max_worker_processes = 40\n");
my $dbh = session($node);

# Who runs what is written down by the controllers themselves.
create_controller_role($dbh, $_) for qw(app other);
$dbh->do('CREATE SEQUENCE public.runs');
$dbh->do('CREATE TABLE public.done (seq int, task text, role text, session text, at timestamptz DEFAULT clock_timestamp(), note text)');
$dbh->do('GRANT ALL ON public.done, public.runs TO app, other');

# A function of a role; its argument is p.
sub controller
{
	my ($role, $name, $body, $argument) = @_;
	$argument ||= 'jsonb';
	$dbh->do("SET SESSION AUTHORIZATION $role");
	$dbh->do("CREATE OR REPLACE FUNCTION $role.$name(p $argument) RETURNS void LANGUAGE plpgsql AS \$f\$ $body \$f\$");
	$dbh->do('RESET SESSION AUTHORIZATION');
	return "$role.$name($argument)";
}

my $note_it = q(INSERT INTO public.done (seq, task, role, session, note)
	VALUES (nextval('public.runs'), p ->> 'n', current_user, session_user, p ->> 'note'););

sub register
{
	my ($type, $function, %opt) = @_;
	return value($dbh, 'SELECT taskoutbox.register_controller($1, $2::regprocedure, $3, $4)',
		$type, $function, $opt{idempotency} || 'atomic', $opt{queue} || 'default');
}

sub put
{
	my ($type, $payload, %opt) = @_;
	return value($dbh, 'SELECT id FROM taskoutbox.enqueue($1, $2::jsonb, group_id => $3, queue => $4)',
		$type, $payload, $opt{group}, $opt{queue} || 'default');
}

sub queue
{
	my ($name, %opt) = @_;
	my $args = join ', ', map { "$_ => '$opt{$_}'" } sort keys %opt;
	return $dbh->do("SELECT taskoutbox.create_queue('$name', " . ($args || "backend => 'embedded'") . ')');
}

sub workers
{
	my ($queue) = @_;
	return value($dbh, 'SELECT max(workers) FROM taskoutbox.controller_status WHERE queue = $1', $queue);
}

sub done
{
	my ($where) = @_;
	return value($dbh, "SELECT string_agg(task, ' ' ORDER BY seq) FROM public.done WHERE $where") // '';
}

sub wait_for
{
	my ($what, $sql, @bind) = @_;
	return ok(poll(sub { value($dbh, $sql, @bind) }), $what)
	  || diag(explain([ rows($dbh, 'SELECT * FROM taskoutbox.controller_status') ],
			[ rows($dbh, 'SELECT id, queue, task_type, receive_count, last_error FROM taskoutbox.task_outbox LIMIT 5') ]));
}

sub wait_empty
{
	my ($queue, $what) = @_;
	return wait_for($what, 'SELECT count(*) = 0 FROM taskoutbox.task_outbox WHERE queue = $1', $queue);
}

sub dead
{
	my ($id) = @_;
	return (rows($dbh, 'SELECT receive_count, last_error FROM taskoutbox.dead_letter WHERE id = $1', $id))[0];
}

#
# Called as the owner, with the payload or the message, ledger and delete with it
#

my $start = mono();
register('plain', controller('app', 'plain', "BEGIN $note_it END"));
put('plain', '{"n": 1, "note": "plain"}');
wait_empty('default', 'a controller is called');
note(sprintf('registration to delete: %.3f s', mono() - $start));
is_deeply([ rows($dbh, q(SELECT task, role, session FROM public.done WHERE note = 'plain')) ],
	[ { task => 1, role => 'app', session => 'app' } ], 'once, in a session of the owner of the function');
is(value($dbh, q(SELECT usename FROM pg_stat_activity WHERE backend_type = 'taskoutbox consumer')), 'app', 'and not in one of anybody else');

register('message', controller('app', 'message',
	q(BEGIN INSERT INTO public.done (task, note) VALUES (p.id::text, to_jsonb(p)::text); END), 'taskoutbox.message'));
my $id = value($dbh, q(SELECT id FROM taskoutbox.enqueue('message', '{"a": 1}', 'g', 'd', headers => '{"h": "x"}')));
wait_empty('default', 'a controller that takes the message');
is(value($dbh, q(SELECT (note::jsonb - 'enqueued_at' - 'uid')::text FROM public.done WHERE task = $1), $id),
	value($dbh, q(SELECT jsonb_build_object('id', $1::bigint, 'receipt_handle', NULL, 'queue', 'default', 'task_type', 'message', 'payload', '{"a": 1}'::jsonb,
		'group_id', 'g', 'deduplication_id', 'd', 'headers', '{"h": "x"}'::jsonb, 'receive_count', 1, 'last_error', NULL)::text), $id),
	'gets all of it but the receipt handle');
my $uid = value($dbh, q(SELECT note::jsonb ->> 'uid' FROM public.done WHERE task = $1), $id);
like($uid, qr/^[0-9a-f-]{36}:$id:\d{16}$/, "its uid: $uid");
is(value($dbh, q(SELECT count(*) FROM taskoutbox.ledger WHERE id = $1 AND consumer = 'taskoutbox:controllers'), $uid), 1, 'is in the ledger');

# What the ledger has is not done again, and natural asks no ledger.
queue('natural');
register('natural', controller('app', 'natural', "BEGIN $note_it END"), queue => 'natural', idempotency => 'natural');
my $before = value($dbh, 'SELECT count(*) FROM taskoutbox.ledger');
put('natural', '{"n": 1, "note": "natural"}', queue => 'natural');
wait_empty('natural', 'idempotency = natural');
is(value($dbh, 'SELECT count(*) FROM taskoutbox.ledger'), $before, 'no row in the ledger');
$dbh->do(q(INSERT INTO taskoutbox.task_outbox (enqueued_at, redriven_from, task_type, payload)
	SELECT to_timestamp(split_part($1, ':', 3)::numeric / 1000000), split_part($1, ':', 2)::bigint, 'message', '{"a": 2}'), undef, $uid);
wait_empty('default', 'a task with a uid that was handled');
is(value($dbh, q(SELECT count(*) FROM public.done WHERE note ~ '"a": 2')), 0, 'is not handled again');

# When another session is about to enter the same uid, the worker waits how that ends.
for my $end ('ROLLBACK', 'COMMIT')
{
	my $entering = session($node);
	my $copy = qq({"a": "$end"});
	$entering->do('BEGIN');
	$entering->do(q(INSERT INTO taskoutbox.ledger (consumer, id) SELECT 'taskoutbox:controllers', regexp_replace($1, ':.*', ':12345:1767225600000000')), undef, $uid);
	$dbh->do(q(INSERT INTO taskoutbox.task_outbox (enqueued_at, redriven_from, task_type, payload)
		VALUES ('2026-01-01 00:00+00', 12345, 'message', $1::jsonb)), undef, $copy);
	wait_for("$end: the worker waits for a session that enters the uid",
		q(SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'taskoutbox consumer' AND wait_event_type = 'Lock'));
	$entering->do($end);
	wait_empty('default', "$end: and goes on");
	is(value($dbh, q(SELECT count(*) FROM public.done WHERE position($1 IN note) > 0), $end), $end eq 'ROLLBACK' ? 1 : 0,
		$end eq 'ROLLBACK' ? 'it was not handled, so now it is' : 'it was handled, so it is not again');
	is(value($dbh, q(SELECT count(*) FROM taskoutbox.ledger WHERE id ~ ':12345:')), 1, 'and is in the ledger once');
	$dbh->do(q(DELETE FROM taskoutbox.ledger WHERE id ~ ':12345:'));
}

# Many tasks, some groups.
queue('many', consumers => 3);
register('many', controller('app', 'many', "BEGIN $note_it END"), queue => 'many');
rows($dbh, q(SELECT e.id FROM generate_series(1, 3000) n, LATERAL taskoutbox.enqueue('many', jsonb_build_object('n', n, 'note', 'many' || n % 10),
	group_id => 'g' || n % 10, queue => 'many') e));
wait_empty('many', '3000 tasks of 10 groups by 3 workers');
is(value($dbh, q(SELECT count(*) FROM public.done WHERE note ~ '^many')), 3000, 'each once');
is(value($dbh, q(SELECT count(*) FROM (SELECT task::int - lag(task::int) OVER (PARTITION BY note ORDER BY seq) AS step
	FROM public.done WHERE note ~ '^many') s WHERE step <> 10)), 0, 'in the order of their groups');

#
# How many workers
#

is(workers('many'), 3, 'consumers = 3: three workers');
$dbh->do(q(SELECT taskoutbox.alter_queue('many', consumers => 1)));
wait_for('consumers = 1: one stays', q(SELECT workers = 1 FROM taskoutbox.controller_status WHERE queue = 'many'));
$dbh->do(q(SELECT taskoutbox.alter_queue('many', consumers => 0)));
wait_for('consumers = 0: none stays', q(SELECT workers = 0 FROM taskoutbox.controller_status WHERE queue = 'many'));
like(value($dbh, q(SELECT problem FROM taskoutbox.controller_status WHERE queue = 'many')), qr/consumers = 0/, 'and the view says why');
$dbh->do(q(SELECT taskoutbox.alter_queue('many', consumers => 2)));
wait_for('and come back', q(SELECT workers = 2 AND problem IS NULL FROM taskoutbox.controller_status WHERE queue = 'many'));
is(value($dbh, q(SELECT taskoutbox.unregister_controller('many', 'many'))), 1, 'unregistered');
is(value($dbh, q(SELECT taskoutbox.unregister_controller('many', 'many'))), 0, 'once');
put('many', '{}', queue => 'many');
my ($m) = receive($dbh, queue => 'many', wait => '5 s');
is($m->{task_type}, 'many', 'without controllers its messages are for programs');
value($dbh, 'SELECT taskoutbox.delete($1)', $m->{receipt_handle});

#
# Errors
#

# A failing controller: its group waits, others flow, then a dead letter.
queue('fails', max_receive_count => 3, retry_base => '400 ms', retry_cap => '500 ms');
register('fails', controller('app', 'fails', qq(
	BEGIN
		PERFORM nextval('public.runs');
		IF p ? 'fail' THEN RAISE EXCEPTION 'no luck'; END IF;
		$note_it
	END)), queue => 'fails');
my $log = -s $node->logfile;
my @ids = map { put('fails', $_, queue => 'fails', group => 'stuck') }
  '{"n": 1, "note": "fails"}', '{"n": 2, "note": "fails", "fail": "hunter2"}', '{"n": 3, "note": "fails"}';
my @flow = map { put('fails', qq({"n": "$_", "note": "flows"}), queue => 'fails', group => $_) } qw(a b c d e f);
wait_for('the second of a group failed', 'SELECT last_error = $2 FROM taskoutbox.task_outbox WHERE id = $1', $ids[1], 'no luck');
is(value($dbh, q(SELECT state FROM taskoutbox.task($1)), $ids[1]), 'waiting for retry', 'and waits for its retry') if !dead($ids[1]);
wait_for('other groups flow', q(SELECT count(*) = 6 FROM public.done WHERE note = 'flows'));
wait_empty('fails', 'then it is given up, and the group goes on');
is(done(q(note = 'fails')), '1 3', 'the third one after it');
is_deeply(dead($ids[1]), { receive_count => 3, last_error => 'no luck' }, 'after max_receive_count receives');
is(value($dbh, q(SELECT count(*) FROM public.done d, taskoutbox.dead_letter l WHERE d.task = '3' AND d.note = 'fails' AND d.at > l.died_at AND l.id = $1), $ids[1]),
	1, 'and not before');
my $text = slurp_file($node->logfile, $log);
is(scalar(() = $text =~ /LOG:  task $ids[1] of type "fails" failed: no luck/g), 3, 'each failure is one line in the log');
unlike($text, qr/hunter2/, 'without the payload');

# on_dead_letter = block
queue('blocks', max_receive_count => 2, retry_base => '10 ms', on_dead_letter => 'block');
register('fails', 'app.fails(jsonb)', queue => 'blocks');
@ids = map { put('fails', $_, queue => 'blocks', group => 'stuck') } '{"n": 1, "fail": true}', '{"n": 2, "note": "blocks"}';
wait_for('a dead letter blocks its group', q(SELECT dead AND id = $1 AND last_error = 'no luck' FROM taskoutbox.blocked_groups WHERE queue = 'blocks' AND dead), $ids[0]);
put('fails', '{"n": 9, "note": "blocks free"}', queue => 'blocks');
wait_for('others flow', q(SELECT count(*) = 1 FROM public.done WHERE note = 'blocks free'));
is(done(q(note = 'blocks')), '', 'its group waits');
controller('app', 'fails', "BEGIN $note_it END");
value($dbh, q(SELECT taskoutbox.redrive('blocks')));
wait_empty('blocks', 'until it is redriven');
is(done(q(note = 'blocks' OR (note IS NULL AND task = '1'))), '1 2', 'then it comes first');

# A task type without a controller, in a queue that has some
$id = put('nobody', '{}', queue => 'blocks');
wait_for('no controller: a dead letter', 'SELECT count(*) = 1 FROM taskoutbox.dead_letter WHERE id = $1', $id);
like(dead($id)->{last_error}, qr/no controller/, 'that says so');

# A failure at commit: only the culprit counts.
$dbh->do(q(CREATE TABLE app.checked (n int)));
$dbh->do(q(ALTER TABLE app.checked OWNER TO app));
$dbh->do(q(CREATE FUNCTION app.check_late() RETURNS trigger LANGUAGE plpgsql AS
	'BEGIN IF NEW.n % 10 = 7 THEN RAISE EXCEPTION ''late %'', current_user; END IF; RETURN NULL; END'));
$dbh->do('CREATE CONSTRAINT TRIGGER late AFTER INSERT ON app.checked DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION app.check_late()');
queue('late', max_receive_count => 2, retry_base => '10 ms');
register('late', controller('app', 'late', q(BEGIN INSERT INTO app.checked VALUES ((p ->> 'n')::int); END)), queue => 'late');
rows($dbh, q(SELECT e.id FROM generate_series(1, 100) n, LATERAL taskoutbox.enqueue('late', jsonb_build_object('n', n), queue => 'late') e));
wait_empty('late', 'deferred triggers fail for some of many');
is(value($dbh, q(SELECT count(*) FROM app.checked)), 90, 'all others are done, once');
is(value($dbh, q(SELECT string_agg(DISTINCT format('%s %s', receive_count, last_error), ',') FROM taskoutbox.dead_letter WHERE queue = 'late')),
	'2 late app', 'the culprits failed, as the owner of the controller');
is(value($dbh, q(SELECT count(*) FROM taskoutbox.dead_letter WHERE queue = 'late' AND (payload ->> 'n')::int % 10 = 7)), 10, 'and nothing else');

# Others of its transaction are rolled back with it, and run again; it is not.
$dbh->do('CREATE SEQUENCE app.attempt');
$dbh->do('ALTER SEQUENCE app.attempt OWNER TO app');
queue('early', max_receive_count => 2, retry_base => '10 ms');
register('early', controller('app', 'early', q(BEGIN
	IF (p ->> 'n')::int % 10 = 7 THEN
		PERFORM nextval('app.attempt');
		RAISE EXCEPTION 'early';
	END IF;
	INSERT INTO public.done (task, note) VALUES (p ->> 'n', 'early');
END)), queue => 'early');
rows($dbh, q(SELECT e.id FROM generate_series(1, 100) n, LATERAL taskoutbox.enqueue('early', jsonb_build_object('n', n), queue => 'early') e));
wait_empty('early', 'some of many fail');
is(value($dbh, q(SELECT count(*) || ' ' || count(DISTINCT task) FROM public.done WHERE note = 'early')), '90 90', 'all others are done, once');
is(value($dbh, q(SELECT string_agg(DISTINCT format('%s %s', receive_count, last_error), ',') FROM taskoutbox.dead_letter WHERE queue = 'early')),
	'2 early', 'the culprits failed');
is(value($dbh, q(SELECT last_value FROM app.attempt)), 20, 'and ran twice each, no more');

#
# Time
#

# Slower than three visibility timeouts, and two workers are there.
queue('slow', visibility_timeout => '300 ms', consumers => 2, max_receive_count => 2);
register('slow', controller('app', 'slow', "BEGIN PERFORM pg_sleep((p ->> 'sleep')::float); $note_it END"), queue => 'slow');
wait_for('two workers', q(SELECT workers = 2 FROM taskoutbox.controller_status WHERE queue = 'slow'));
$id = put('slow', '{"n": 1, "sleep": 1.3, "note": "slow"}', queue => 'slow');
wait_for('it is in flight', 'SELECT count(*) = 1 FROM taskoutbox.in_flight WHERE id = $1 AND until = $2', $id, 'infinity');
put('slow', '{"n": 2, "sleep": 0, "note": "quick"}', queue => 'slow');
wait_for('a quick one is done meanwhile', q(SELECT count(*) = 1 FROM public.done WHERE note = 'quick'));
is(value($dbh, q(SELECT count(*) FROM public.done WHERE note = 'slow')), 0, 'by the other worker');
wait_empty('slow', 'slower than its visibility timeout');
is(value($dbh, q(SELECT count(*) FROM public.done WHERE note = 'slow')), 1, 'and done once');

# max_run_time; one that catches the error is not spared
$dbh->do(q(SELECT taskoutbox.alter_queue('slow', max_run_time => '500 ms', retry_base => '10 ms')));
register('stubborn', controller('app', 'stubborn', q(
	BEGIN
		LOOP
			BEGIN PERFORM pg_sleep(60); EXCEPTION WHEN query_canceled THEN NULL; END;
			PERFORM pg_sleep(60);
		END LOOP;
	END)), queue => 'slow');
$start = mono();
@ids = (put('slow', '{"n": 3, "sleep": 60}', queue => 'slow'), put('stubborn', '{}', queue => 'slow'));
wait_for('max_run_time ends them', q(SELECT count(*) = 2 FROM taskoutbox.dead_letter WHERE queue = 'slow'));
cmp_ok(mono() - $start, '<', 15, 'in time');
like(dead($_)->{last_error}, qr/longer than max_run_time, 500 ms/, 'and says so') for @ids;
is(dead($ids[0])->{receive_count}, 2, 'and counts');
put('slow', '{"n": 4, "sleep": 0, "note": "after"}', queue => 'slow');
wait_for('the workers work on', q(SELECT count(*) = 1 FROM public.done WHERE note = 'after'));

# A program that dies gives its work back at its visibility timeout.
queue('program', visibility_timeout => '700 ms');
$id = put('x', '{}', queue => 'program');
my $program = session($node);
($m) = receive($program, queue => 'program', wait => '5 s');
$start = mono();
kill 'TERM', backend_pid($program);
($m) = receive($dbh, queue => 'program', wait => '10 s');
is($m->{id}, $id, 'what a program had comes back when it died');
cmp_ok(mono() - $start, '>', .3, 'at the timeout');
value($dbh, 'SELECT taskoutbox.delete($1)', $m->{receipt_handle});

# A worker that is terminated: its task is counted, and done by the next one.
queue('killed');
register('killed', controller('app', 'killed',
	"BEGIN IF nextval('public.runs') IS NOT NULL AND p ? 'wait' THEN PERFORM pg_sleep_for('2 s'); END IF; $note_it END"), queue => 'killed');
$id = put('killed', '{"n": 1, "wait": true, "note": "killed"}', queue => 'killed');
wait_for('a task runs', 'SELECT count(*) = 1 FROM taskoutbox.in_flight WHERE id = $1', $id);
my $pid = value($dbh, 'SELECT holder FROM taskoutbox.in_flight WHERE id = $1', $id);
value($dbh, 'SELECT pg_terminate_backend($1)', $pid);
wait_for('its worker is terminated: counted', 'SELECT receive_count = 1 FROM taskoutbox.task_outbox WHERE id = $1', $id);
wait_empty('killed', 'and done by the next one');
is(done(q(note = 'killed')), '1', 'once');

#
# Several roles in one queue
#

queue('shared');
register('a', controller('app', 'a', "BEGIN $note_it END"), queue => 'shared');
register('b', controller('other', 'b', "BEGIN $note_it END"), queue => 'shared');
wait_for('two roles have a worker each', q(SELECT count(*) = 2 FROM taskoutbox.controller_status WHERE queue = 'shared' AND workers = 1));
rows($dbh, q(SELECT e.id FROM generate_series(1, 400) n, LATERAL taskoutbox.enqueue(CASE n % 3 WHEN 0 THEN 'a' ELSE 'b' END,
	jsonb_build_object('n', n, 'note', 'shared'), group_id => CASE WHEN n <= 200 THEN 'g' || n % 5 END, queue => 'shared') e));
wait_empty('shared', 'task types of two roles in one queue');
is(value($dbh, q(SELECT count(*) FROM public.done WHERE note = 'shared')), 400, 'all done');
is(value($dbh, q(SELECT count(*) FROM public.done WHERE note = 'shared' AND role <> CASE task::int % 3 WHEN 0 THEN 'app' ELSE 'other' END)), 0, 'each by its role');
is(value($dbh, q(SELECT count(*) FROM (SELECT task::int - lag(task::int) OVER (PARTITION BY task::int % 5 ORDER BY seq) AS step
	FROM public.done WHERE note = 'shared' AND task::int <= 200) s WHERE step <> 5)), 0, 'and in the order of their groups');

# A function that is dropped stops its own task type only.
$dbh->do('DROP FUNCTION app.a(jsonb)');
like(value($dbh, q(SELECT problem FROM taskoutbox.controller_status WHERE queue = 'shared' AND task_type = 'a')), qr/does not exist/, 'a dropped function: the view says so');
$dbh->do(q(SELECT taskoutbox.alter_queue('shared', max_receive_count => 1)));
$id = put('a', '{"n": 1}', queue => 'shared');
put('b', '{"n": 2, "note": "still"}', queue => 'shared');
wait_for('others are called', q(SELECT count(*) = 1 FROM public.done WHERE note = 'still'));
wait_for('its tasks fail', 'SELECT count(*) = 1 FROM taskoutbox.dead_letter WHERE id = $1', $id);
like(dead($id)->{last_error}, qr/does not exist/, 'and say why');

# A role that is dropped, too.
$dbh->do('CREATE ROLE shortlived LOGIN');
$dbh->do('CREATE SCHEMA shortlived AUTHORIZATION shortlived');
register('short', controller('shortlived', 'short', 'BEGIN END'), queue => 'shared');
put('short', '{}', queue => 'shared');
wait_empty('shared', 'a third role');
$dbh->do('DROP OWNED BY shortlived');
$dbh->do('DROP ROLE shortlived');
put('b', '{"n": 3, "note": "and still"}', queue => 'shared');
wait_for('a dropped role stops nobody else', q(SELECT count(*) = 1 FROM public.done WHERE note = 'and still'));
wait_for('its worker leaves', q(SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'taskoutbox consumer' AND usename IS NULL));
like(value($dbh, q(SELECT problem FROM taskoutbox.controller_status WHERE task_type = 'short')), qr/does not exist/, 'the view says so');

# An owner that may not log in any more: said before the worker is missed.
$dbh->do('ALTER ROLE other NOLOGIN');
like(value($dbh, q(SELECT problem FROM taskoutbox.controller_status WHERE task_type = 'b')), qr/log in/, 'NOLOGIN: the view says so')
  if $node->pg_version < 17;
$dbh->do('ALTER ROLE other LOGIN');

#
# Rights
#

# What a controller leaves behind is gone for the next one, in the same transaction or not.
$dbh->do('GRANT other TO app');
queue('mess');
register('litter', controller('app', 'litter', q(
	BEGIN
		SET work_mem = '123MB';
		PERFORM set_config('my.secret', 'x', false);
		PREPARE left_behind AS SELECT 1;
		EXECUTE 'DECLARE left_cursor CURSOR WITH HOLD FOR SELECT current_user';
		PERFORM pg_advisory_lock(4711);
		CREATE TEMP TABLE IF NOT EXISTS left_table (x int);
		CREATE TEMP TABLE IF NOT EXISTS done (x int);
		SET search_path = pg_temp, public;
		SET ROLE other;
	END)), queue => 'mess');
register('light', controller('app', 'light', q(BEGIN SET work_mem = '123MB'; SET search_path = pg_temp; SET ROLE other; END)), queue => 'mess');
register('look', controller('app', 'look', q(
	BEGIN
		INSERT INTO public.done (task, role, session, note) SELECT p ->> 'n', current_user, session_user,
			concat_ws(' ', 'look', current_setting('work_mem'), current_setting('search_path'), nullif(current_setting('my.secret', true), ''),
				(SELECT count(*) FROM pg_prepared_statements), (SELECT count(*) FROM pg_cursors),
				(SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()), to_regclass('left_table'));
	END)), queue => 'mess');
put('look', '{"n": "clean"}', queue => 'mess');
wait_empty('mess', 'a fresh session');
my $clean = value($dbh, q(SELECT note FROM public.done WHERE task = 'clean'));
note($clean);
for my $round (1 .. 3)
{
	# often in one transaction
	rows($dbh, q(SELECT e.id FROM unnest(ARRAY['litter', 'look', 'light', 'look', 'light', 'litter', 'look']) t,
		LATERAL taskoutbox.enqueue(t, '{"n": "dirty"}', group_id => 'one', queue => 'mess') e));
}
wait_empty('mess', 'one that others have used');
is_deeply([ map { "$_->{role} $_->{session} $_->{note}" } rows($dbh, q(SELECT DISTINCT role, session, note FROM public.done WHERE task = 'dirty')) ],
	["app app $clean"], 'is like a fresh one');
is(value($dbh, q(SELECT count(*) FROM public.done WHERE task = 'dirty')), 9, 'each time');

# What a deferred trigger sets at the commit is gone, too.
$dbh->do('CREATE TABLE app.late (n int)');
$dbh->do('ALTER TABLE app.late OWNER TO app');
$dbh->do('SET SESSION AUTHORIZATION app');
$dbh->do(q(CREATE FUNCTION app.set_late() RETURNS trigger LANGUAGE plpgsql AS
	$$ BEGIN SET work_mem = '123MB'; SET search_path = pg_temp; PERFORM set_config('my.secret', 'x', false); SET ROLE other; RETURN NULL; END $$));
$dbh->do('CREATE CONSTRAINT TRIGGER late AFTER INSERT ON app.late DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION app.set_late()');
$dbh->do('RESET SESSION AUTHORIZATION');
register('late', controller('app', 'leave_late', q(BEGIN INSERT INTO app.late VALUES (1); END)), queue => 'mess');
for my $round (1 .. 3)
{
	put('late', '{}', queue => 'mess');
	wait_empty('mess', "a deferred trigger that sets something $round");
	put('look', qq({"n": "late $round"}), queue => 'mess');
	wait_empty('mess', 'and what is called after it');
}
is_deeply([ map { "$_->{role} $_->{session} $_->{note}" } rows($dbh, q(SELECT DISTINCT role, session, note FROM public.done WHERE task LIKE 'late %')) ],
	["app app $clean"], 'is like a fresh session, too');

# Nobody becomes more than the owner of the function, whatever he tries.
queue('climb', max_receive_count => 1);
for my $try ('SET SESSION AUTHORIZATION postgres', 'SET ROLE postgres', 'SET LOCAL SESSION AUTHORIZATION postgres',
	'RESET SESSION AUTHORIZATION; CREATE ROLE climber SUPERUSER', 'RESET ROLE; CREATE ROLE climber SUPERUSER',
	q(COPY (SELECT 1) TO PROGRAM 'true'), 'DELETE FROM taskoutbox.task_outbox',
	q(SELECT set_config('session_authorization', 'postgres', false)), q(SELECT set_config('role', 'postgres', false)),
	q(SELECT set_config('session_replication_role', 'replica', false)))
{
	my $owner = value($dbh, 'SELECT current_user');
	(my $sql = $try) =~ s/postgres/$owner/;
	register('climb', controller('app', 'climb', "BEGIN EXECUTE " . $dbh->quote($sql) . "; END"), queue => 'climb');
	$id = put('climb', '{}', queue => 'climb');
	wait_for("refused: $sql", 'SELECT count(*) = 1 FROM taskoutbox.dead_letter WHERE id = $1', $id);
	like(dead($id)->{last_error}, qr/permission denied|must be superuser|cannot set parameter/, dead($id)->{last_error});
}

# What runs at the commit: deferred triggers and cursors WITH HOLD
$dbh->do(q(CREATE TABLE app.trap (n int)));
$dbh->do('ALTER TABLE app.trap OWNER TO app');
controller('app', 'who', q(BEGIN END));
$dbh->do('SET SESSION AUTHORIZATION app');
$dbh->do(q(CREATE FUNCTION app.spring() RETURNS trigger LANGUAGE plpgsql AS
	'BEGIN INSERT INTO public.done (task, role, session, note) VALUES (NEW.n::text, current_user, session_user, ''trap''); RETURN NULL; END'));
$dbh->do('CREATE CONSTRAINT TRIGGER spring AFTER INSERT ON app.trap DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION app.spring()');
$dbh->do(q(CREATE FUNCTION app.held() RETURNS int LANGUAGE plpgsql AS
	'BEGIN INSERT INTO public.done (task, role, session, note) VALUES (''held'', current_user, session_user, ''trap''); RETURN 1; END'));
$dbh->do('RESET SESSION AUTHORIZATION');
register('trap', controller('app', 'trap_it', q(
	BEGIN
		INSERT INTO app.trap VALUES (1);
		EXECUTE 'DECLARE held CURSOR WITH HOLD FOR SELECT app.held()';
		SET ROLE other;
	END)), queue => 'climb');
put('trap', '{}', queue => 'climb');
wait_empty('climb', 'deferred trigger and holdable cursor');
is(value($dbh, q(SELECT string_agg(DISTINCT role || ' ' || session, ',') FROM public.done WHERE note = 'trap')), 'app app', 'run as the owner, or not at all');

# The function is replaced: by its owner, as he likes; by another role, in vain.
$dbh->do('CREATE SCHEMA open');
$dbh->do('GRANT ALL ON SCHEMA open TO PUBLIC');
$dbh->do('SET SESSION AUTHORIZATION app');
$dbh->do('CREATE FUNCTION open.f(p jsonb) RETURNS void LANGUAGE plpgsql AS $$ BEGIN ' . $note_it . ' END $$');
$dbh->do('RESET SESSION AUTHORIZATION');
queue('open', max_receive_count => 1);
register('f', 'open.f(jsonb)', queue => 'open');
put('f', '{"n": 1, "note": "open"}', queue => 'open');
wait_empty('open', 'a function in an open schema');
$dbh->do('SET SESSION AUTHORIZATION app');
$dbh->do('DROP FUNCTION open.f(jsonb)');
$dbh->do('SET SESSION AUTHORIZATION other');
$dbh->do('CREATE FUNCTION open.f(p jsonb) RETURNS void LANGUAGE plpgsql AS $$ BEGIN ' . $note_it . ' END $$');
$dbh->do('RESET SESSION AUTHORIZATION');
like(value($dbh, q(SELECT problem FROM taskoutbox.controller_status WHERE task_type = 'f')), qr/not the one that was registered/, 'another one, of another role: the view says so');
register('g', 'app.plain(jsonb)', queue => 'open');
$id = put('f', '{"n": 2, "note": "open"}', queue => 'open');
wait_for('it is not called', 'SELECT count(*) = 1 FROM taskoutbox.dead_letter WHERE id = $1', $id);
is(done(q(note = 'open')), '1', 'so nobody sees the payload who did not before');
$dbh->do('DROP FUNCTION open.f(jsonb)');
$dbh->do('SET SESSION AUTHORIZATION app');
$dbh->do('CREATE FUNCTION open.f(p jsonb) RETURNS void LANGUAGE plpgsql AS $$ BEGIN ' . $note_it . ' END $$');
$dbh->do('RESET SESSION AUTHORIZATION');
put('f', '{"n": 3, "note": "open"}', queue => 'open');
wait_empty('open', 'one of the same role is called');
is(done(q(note = 'open')), '1 3', 'as before');
# given to another role; the relay has seen by now that it is another function
wait_for('what is registered is up to date', q(SELECT function_oid = to_regprocedure(controller) FROM taskoutbox.controller WHERE task_type = 'f'));
$dbh->do('ALTER FUNCTION open.f(jsonb) OWNER TO other');
put('f', '{"n": 4, "note": "open"}', queue => 'open');
wait_empty('open', 'one that changed hands');
is(value($dbh, q(SELECT role || session FROM public.done WHERE note = 'open' AND task = '4')), 'otherother', 'runs as its owner of now');

# Registration is for the owner, and takes nothing from others.
$dbh->do('GRANT EXECUTE ON FUNCTION taskoutbox.register_controller, taskoutbox.unregister_controller TO app, other');
my $other = session($node, user => 'other');
is(state_of($other, q(SELECT taskoutbox.register_controller('x', 'app.plain(jsonb)'))), '42501', 'the function of another role');
is(state_of($other, q(SELECT taskoutbox.register_controller('plain', 'other.b(jsonb)'))), '42501', 'the task type of another role');
is(state_of($other, q(SELECT taskoutbox.unregister_controller('plain'))), '42501', 'nor end it');
is(state_of($other, q(SELECT taskoutbox.register_controller('mine', 'other.b(jsonb)'))), '00000', 'his own');
is(state_of($other, q(SELECT taskoutbox.unregister_controller('mine'))), '00000', 'and back');

# A queue that is kept for a role (consumer_role): only its members have controllers in it.
$dbh->do('CREATE ROLE billing');
queue('kept', consumer_role => 'billing');
my $kept = controller('app', 'kept', "BEGIN $note_it END");
is(state_of($dbh, qq(SELECT taskoutbox.register_controller('kept', '$kept', queue => 'kept'))), '42501', 'no member, no controller');
$dbh->do('GRANT billing TO app');
register('kept', $kept, queue => 'kept');
put('kept', '{"n": 1, "note": "kept"}', queue => 'kept');
wait_empty('kept', 'a member has one');
$dbh->do('REVOKE billing FROM app');
put('kept', '{"n": 2, "note": "kept"}', queue => 'kept');
wait_for('a member no more: the view says so',
	q(SELECT workers = 0 AND problem ~ 'kept for' FROM taskoutbox.controller_status WHERE queue = 'kept'));
is(done(q(note = 'kept')), '1', 'and gets nothing');
$dbh->do('GRANT billing TO app');
wait_empty('kept', 'and again');

#
# The life of workers
#

# A copy of another database does nothing by itself.
$dbh->do(q(UPDATE taskoutbox.installation_pin SET system_identifier = 'another'));
wait_for('a copy has no workers', q(SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'taskoutbox consumer'));
put('plain', '{"n": 1, "note": "copy"}');
like(value($dbh, q(SELECT problem FROM taskoutbox.controller_status WHERE task_type = 'plain')), qr/confirm/, 'the view says so');
$dbh->do('SELECT taskoutbox.confirm()');
wait_empty('default', 'until it is confirmed');

# DROP EXTENSION and DROP DATABASE
$dbh->do('CREATE DATABASE gone');
my $gone = session($node, dbname => 'gone');
$gone->do('CREATE EXTENSION taskoutbox');
$gone->do(q(CREATE FUNCTION f(p jsonb) RETURNS void LANGUAGE sql AS 'SELECT pg_sleep(60)'));
$gone->do(q(SELECT taskoutbox.register_controller('f', 'f(jsonb)')));
ok(poll(sub { value($gone, 'SELECT workers FROM taskoutbox.controller_status') == 1 }), 'a worker in another database');
$gone->do('DROP EXTENSION taskoutbox');
wait_for('DROP EXTENSION: it leaves', q(SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'taskoutbox consumer' AND datname = 'gone'));
$gone->do('CREATE EXTENSION taskoutbox');
$gone->do(q(SELECT taskoutbox.register_controller('f', 'f(jsonb)')));
$gone->do(q(SELECT taskoutbox.enqueue('f')));
wait_for('a controller sleeps there', q(SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'taskoutbox consumer' AND datname = 'gone' AND state = 'active'));
$gone->disconnect;
$dbh->do('CREATE DATABASE copied TEMPLATE gone');
my $copied = session($node, dbname => 'copied');
ok(poll(sub { value($copied, 'SELECT problem FROM taskoutbox.controller_status') =~ /confirm/ }), 'a database with workers can be copied, and the copy has none');
$copied->disconnect;
wait_for('the worker comes back', q(SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'taskoutbox consumer' AND datname = 'gone' AND state = 'active'));
$dbh->do('ALTER DATABASE gone RENAME TO going');
wait_for('a database with workers can be renamed', q(SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'taskoutbox consumer' AND datname = 'going' AND state = 'active'));
$gone = session($node, dbname => 'going');
is(value($gone, 'SELECT max(receive_count) FROM taskoutbox.task_outbox'), undef, 'and what had to make way was not counted');
$gone->disconnect;
$start = mono();
$dbh->do('DROP DATABASE going');
cmp_ok(mono() - $start, '<', 4, 'DROP DATABASE does not wait for a controller');

# Shutdown does not either.
put('slow', '{"n": 1, "sleep": 60}', queue => 'slow');
wait_for('a controller sleeps', q(SELECT count(*) = 1 FROM taskoutbox.in_flight WHERE queue = 'slow'));
$start = mono();
$node->stop('fast');
cmp_ok(mono() - $start, '<', 10, 'nor does a fast shutdown');

# Too few background workers: said, and mended by a setting.
$node->append_conf('postgresql.conf', 'max_worker_processes = 4');
$log = -s $node->logfile;
$node->start;
$dbh = session($node);
wait_for_relay($node);
wait_for('no slot for all workers: the view says so', q(SELECT count(*) > 0 FROM taskoutbox.controller_status WHERE problem ~ 'max_worker_processes'));
$node->wait_for_log(qr/LOG:  taskoutbox \w+: no free (?:background worker )?slot/, $log);
unlike(slurp_file($node->logfile), qr/PANIC|signal 6|signal 11|TRAP:/, 'nothing crashed');

done_testing();
