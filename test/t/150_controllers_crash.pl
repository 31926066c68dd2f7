# Crashes while controllers run: a task that crashes the server does so
# max_receive_count times, and harms no other; and whatever is killed, work with a
# ledger or in one transaction with its delete is done exactly once.
# CONSUMER_SECONDS: how long to kill (20).

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use File::Spec;
use Killing;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use TaskoutboxTest;
use Test::More;

my $seconds = $ENV{CONSUMER_SECONDS} || 20;
my $node = new_node('crash', conf => "max_worker_processes = 20\nshared_buffers = 32MB\nwal_level = minimal\nmax_wal_senders = 0\n");
create_role($node);

my $library = File::Spec->rel2abs("$FindBin::RealBin/../crash/crash");
$dbh->do("CREATE FUNCTION app.crash() RETURNS void LANGUAGE C AS '$library', 'crash'");
$dbh->do('CREATE TABLE app.done (n int, receive_count int)');
$dbh->do('ALTER TABLE app.done OWNER TO app');

#
# A task that crashes the server
#

$dbh->do(q(SELECT taskoutbox.create_queue('bombs', max_receive_count => 3, consumers => 3)));
my $note = q(INSERT INTO app.done VALUES ((m.payload ->> 'n')::int, m.receive_count););
controller('plain', 'bombs', qq(BEGIN IF m.payload ? 'bomb' THEN PERFORM app.crash(); END IF; $note END));
controller('slow', 'bombs', qq(BEGIN PERFORM pg_sleep(1.5); $note END));

my $log = -s $node->logfile;
$dbh->do('BEGIN');
$dbh->do(q(SELECT count(e.id) FROM generate_series(1, 300) n, LATERAL taskoutbox.enqueue('plain', jsonb_build_object('n', n), group_id => 'g' || n % 10, queue => 'bombs') e));
my $bomb = value($dbh, q(SELECT id FROM taskoutbox.enqueue('plain', '{"n": 0, "bomb": true}', group_id => 'g1', queue => 'bombs')));
$dbh->do(q(SELECT count(e.id) FROM generate_series(301, 600) n, LATERAL taskoutbox.enqueue('plain', jsonb_build_object('n', n), group_id => 'g' || n % 10, queue => 'bombs') e));
$dbh->do(q(SELECT count(e.id) FROM generate_series(601, 602) n, LATERAL taskoutbox.enqueue('slow', jsonb_build_object('n', n), queue => 'bombs') e));
$dbh->do('COMMIT');
ok(poll(sub { get(q(SELECT count(*) FROM taskoutbox.task_outbox)) == 0 }), 'all tasks but one complete')
  or diag(explain([ rows($dbh, 'SELECT id, task_type, receive_count, last_error FROM taskoutbox.task_outbox LIMIT 10') ]));
my $text = slurp_file($node->logfile, $log);
is(scalar(() = $text =~ /terminated by signal 6/g), 3, 'it crashed the server max_receive_count times');
is_deeply([ rows($dbh, 'SELECT id, receive_count, stage, last_error FROM taskoutbox.dead_letter') ],
	[ { id => $bomb, receive_count => 3, stage => 'consumer', last_error => 'the server crashed while its controller ran' } ],
	'and is the only dead letter');
is(get('SELECT count(*) FROM app.done'), 602, 'the others were done');
is(get('SELECT count(DISTINCT n) FROM app.done'), 602, 'once');
is(get('SELECT max(receive_count) FROM app.done'), 1, 'no crash counts against what others were at');

# The same at commit: who of those that commit together is it?
$dbh->do('TRUNCATE app.done');
$dbh->do('SET SESSION AUTHORIZATION app');
$dbh->do(q(CREATE FUNCTION app.late() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM app.crash(); RETURN NULL; END'));
$dbh->do('CREATE CONSTRAINT TRIGGER late AFTER INSERT ON app.done DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.n = 50) EXECUTE FUNCTION app.late()');
$dbh->do('RESET SESSION AUTHORIZATION');
$log = -s $node->logfile;
$dbh->do(q(SELECT count(e.id) FROM generate_series(1, 100) n, LATERAL taskoutbox.enqueue('plain', jsonb_build_object('n', n), queue => 'bombs') e));
ok(poll(sub { get(q(SELECT count(*) FROM taskoutbox.task_outbox)) == 0 }), 'a crash at commit: all others complete');
is(get('SELECT count(DISTINCT n) FROM app.done'), 99, 'all of them');
is(get('SELECT count(*) FROM app.done'), 99, 'once');
cmp_ok(get('SELECT max(receive_count) FROM app.done'), '<=', 2, 'those that committed with it are counted once, and run alone then');
is(get(q(SELECT string_agg(payload ->> 'n', ' ') FROM taskoutbox.dead_letter WHERE id <> $1), $bomb), '50', 'the culprit is a dead letter');
is(scalar(() = slurp_file($node->logfile, $log) =~ /terminated by signal 6/g), 3, 'after max_receive_count crashes');

# An immediate shutdown is no crash of a controller.
my $slow = get(q(SELECT id FROM taskoutbox.enqueue('slow', '{"n": 700}', queue => 'bombs')));
ok(poll(sub { get('SELECT count(*) FROM taskoutbox.in_flight WHERE id = $1', $slow) }), 'a controller runs');
$node->stop('immediate');
$node->start;
ok(poll(sub { get('SELECT count(*) FROM app.done WHERE n = 700') }), 'it is run again after an immediate shutdown');
is(get('SELECT receive_count FROM app.done WHERE n = 700'), 1, 'without being counted');

#
# Everything is killed
#

kill_everything(seconds => $seconds, rounds => 20);
unlike(slurp_file($node->logfile), qr/PANIC|signal 11|TRAP:/, 'no other crash than ours');

done_testing();
