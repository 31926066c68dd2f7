# Schedules with the real pg_cron, on a server whose clock the test sets
# (test/clock): midnights, months and days on which clocks are changed come when they
# are wanted.  What fires several times gives one task; what fails, and what was
# missed, is seen, and filled with one call.  Cases C32, C34, C35, C36, C41, C43.

use strict;
use warnings FATAL => 'all';

use Cwd;
use FindBin;
use lib "$FindBin::RealBin/../perl";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use TaskoutboxTest;
use Test::More;
use Time::Local qw(timegm);

plan skip_all => 'pg_cron is not installed'
  unless -e `$ENV{PG_CONFIG} --sharedir | tr -d '\\n'` . '/extension/pg_cron.control';

# The clock's file holds the seconds between ours and the system's.
my $clock_file = PostgreSQL::Test::Utils::tempdir . '/clock';
my $clock_library = getcwd() . '/test/clock/clock.so';

sub set_clock
{
	my ($time) = @_;
	my ($year, $month, $day, $hour, $minute, $second) = $time =~ /^(\d+)-(\d+)-(\d+) (\d+):(\d+):(\d+)$/
	  or die "not a time: $time";
	my $step = timegm($second, $minute, $hour, $day, $month - 1, $year) - time;
	open my $f, -e $clock_file ? '+<' : '>', $clock_file or die "$clock_file: $!";
	print $f pack('q', $step);
	close $f or die "$clock_file: $!";
	return;
}

sub with_clock
{
	my ($code) = @_;
	local $ENV{LD_PRELOAD} = $clock_library;
	local $ENV{TASKOUTBOX_TEST_CLOCK} = $clock_file;
	return $code->();
}

my $cron_conf = q(
shared_preload_libraries = 'taskoutbox, pg_cron'
max_worker_processes = 40
cron.use_background_workers = on
client_connection_check_interval = '500ms'
log_min_messages = notice
log_timezone = 'UTC'
timezone = 'UTC'
);

set_clock('2027-03-27 12:00:00');
my $node = with_clock(sub { new_node('schedules', conf => $cron_conf) });
my $dbh = session($node);
my $me = value($dbh, 'SELECT current_user');
is(value($dbh, q(SELECT date_trunc('hour', now()) AT TIME ZONE 'UTC')), '2027-03-27 12:00:00', 'the clock is ours');
$dbh->do('CREATE EXTENSION pg_cron');

# All runs of all entries are over, and there are $n of them.
sub wait_for_runs
{
	my ($n) = @_;
	poll(sub { value($dbh, q(SELECT count(*) = $1::int FROM cron.job_run_details WHERE runid > 0 AND status IN ('succeeded', 'failed')), $n) })
	  or die "not $n runs, but:\n" . join("\n", map { join '|', map { defined $_ ? $_ : '' } @$_ } @{ $dbh->selectall_arrayref('SELECT jobid, status, return_message, start_time FROM cron.job_run_details') });
	return;
}

sub status
{
	my ($jobname, $session) = @_;
	my @r = rows($session || $dbh, 'SELECT * FROM taskoutbox.schedule_status WHERE jobname = $1', $jobname);
	die "@{[scalar @r]} rows for $jobname" unless @r == 1;
	return $r[0];
}

sub schedule
{
	my ($name, $when, $command) = @_;
	return value($dbh, 'SELECT cron.schedule($1, $2, $3)', $name, $when, $command);
}

sub tasks
{
	my ($type) = @_;
	return join(' ', map { $_->{deduplication_id} } rows($dbh, 'SELECT deduplication_id FROM taskoutbox.task_outbox WHERE task_type = $1 ORDER BY id', $type));
}

#
# One midnight, and all that can happen then
#

# Three times the same entry, as three instances have it.  00:00 is one o'clock in
# Berlin, on the day on which clocks there go forward.
my $interest = q(SELECT taskoutbox.enqueue('account.apply-daily-interest', '{"run": "nightly"}',
	deduplication_id => taskoutbox.period_id('account.apply-daily-interest', 'day', 'Europe/Berlin'),
	deduplication_window => '400 days'));
schedule("interest $_", '0 0 * * *', $interest) for 1 .. 3;

# A fourth instance is a cluster of its own that calls us.  It dies in the middle.
my $other = PostgreSQL::Test::Cluster->new('other');
with_clock(
	sub {
		$other->init;
		$other->append_conf('postgresql.conf', "shared_preload_libraries = 'pg_cron'\nlog_timezone = 'UTC'\ntimezone = 'UTC'\n");
		$other->start;
	});
my $close = q(taskoutbox.enqueue_period('account.close', 'month', at => now() + interval '10 days'));
$other->safe_psql('postgres', qq(
	CREATE EXTENSION pg_cron;
	SELECT cron.schedule('close', '0 0 * * *', \$\$SELECT $close, pg_sleep(3600)\$\$);
	UPDATE cron.job SET nodename = '@{[$node->host]}', nodeport = @{[$node->port]}));
# Ours comes second.
schedule('close here', '0 0 * * *', qq(DO \$\$ BEGIN
	WHILE NOT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND query LIKE '%pg_sleep(3600)') LOOP
		PERFORM pg_sleep(0.02), pg_stat_clear_snapshot();
	END LOOP;
	PERFORM $close;
END \$\$));

# Those that fail, each for another reason, and one that does not
$dbh->do('CREATE ROLE app LOGIN');
$dbh->do('CREATE ROLE leaver LOGIN');
$dbh->do('GRANT USAGE ON SCHEMA taskoutbox, cron TO app, leaver');
$dbh->do('GRANT EXECUTE ON FUNCTION taskoutbox.enqueue_period TO app, leaver');
value($dbh, q(SELECT taskoutbox.create_queue('doomed')));
schedule('large', '0 0 * * *', q(SELECT taskoutbox.enqueue_period('report.large', 'day', jsonb_build_object('secret', repeat('x', 300000)))));
schedule('lost queue', '0 0 * * *', q(SELECT taskoutbox.enqueue_period('report.lost', 'day', queue => 'doomed')));
schedule('syntax', '0 0 * * *', q{SELECT taskoutbox.enqueue('report.syntax' FROM});
my $app = session($node, user => 'app');
value($app, q(SELECT cron.schedule('of app', '0 0 * * *', $$SELECT taskoutbox.enqueue_period('app.work', 'day')$$)));
value($app, q(SELECT cron.schedule('revoked', '0 0 * * *', $$SELECT taskoutbox.enqueue('app.plain')$$)));
my $leaver = session($node, user => 'leaver');
value($leaver, q(SELECT cron.schedule('of leaver', '0 0 * * *', $$SELECT taskoutbox.enqueue_period('leaver.work', 'day')$$)));
$leaver->disconnect;
value($dbh, q(SELECT taskoutbox.drop_queue('doomed')));
schedule('unrelated', '0 0 * * *', 'SELECT 1');

# C41: the purge entry of doc/schedules.md
open my $doc, '<', 'doc/schedules.md' or die $!;
my ($purge) = do { local $/; <$doc> } =~ /SELECT cron\.schedule\('purge run log', '[^']+', \$\$(.*?)\$\$\);/s;
close $doc;
ok($purge, 'doc/schedules.md has a purge entry');
schedule('purge run log', '0 0 * * *', $purge);
$dbh->do(q(INSERT INTO cron.job_run_details (jobid, runid, status, start_time, end_time)
	SELECT 1, -n, 'succeeded', now() - n * interval '1 day', now() - n * interval '1 day' FROM generate_series(1, 100) n));
$dbh->do(q(UPDATE cron.job_run_details SET status = 'failed', start_time = NULL, end_time = NULL WHERE runid = -50));

$dbh->do('DROP OWNED BY leaver');
# The role itself goes when pg_cron has read its entries, see below.
schedule('at six', '0 18 * * *', 'SELECT 1');
set_clock('2027-03-27 17:59:58');
wait_for_runs(1);

# A schedule that has not run yet misses nothing.
is(status('interest 1')->{status}, 'succeeded', 'the log that we made up') or diag explain status('interest 1');
is_deeply(status('of app')->{missed_periods}, [], 'nothing missed before the first run');

my $log = -s $node->logfile;
set_clock('2027-03-27 23:59:57');
$dbh->do('DROP ROLE leaver');
poll(sub { value($dbh, q(SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND query LIKE '%pg_sleep(3600)')) })
  or die 'the other instance does not call';
$other->stop('immediate');
wait_for_runs(13);
my $interest_runs = join(' ', map { $_->{status} } rows($dbh, q(SELECT d.status FROM cron.job_run_details d JOIN cron.job USING (jobid) WHERE jobname LIKE 'interest%' AND runid > 0)));
is($interest_runs, 'succeeded succeeded succeeded', 'the same entry three times: all succeed');
is(tasks('account.apply-daily-interest'), 'account.apply-daily-interest-2027-03-28', 'one task results, of the local day');
is(value($dbh, q(SELECT duplicates FROM taskoutbox.queue_metrics WHERE queue = 'default')), 2, 'two duplicates are visible in queue_metrics');
my $text = slurp_file($node->logfile, $log);
# (pg_cron before 1.6.6 logs what its workers are told, too, as a LOG.)
my @told = $text =~ /NOTICE:  1 task is a duplicate\n.*DETAIL:  The first has deduplication_id "account.apply-daily-interest-2027-03-28"/g;
is(scalar(@told), 2, 'and in the server log');
my ($m) = grep { $_->{task_type} eq 'account.apply-daily-interest' } drain($dbh);
is($m->{payload}, '{"run": "nightly"}', 'it is consumed');

is(value($dbh, q(SELECT string_agg(deduplication_id || ' ' || expires_at::date, ', ') FROM taskoutbox.deduplication WHERE deduplication_id LIKE 'account.close%')),
	'account.close-2027-04 2028-05-05', 'C43: one instance dies in the middle, another one takes over');
my $s = status('close here');
like($s->{hint}, qr/^An entry in cron\.job belongs to a role that does not exist/, 'an entry whose role was dropped is a danger to all');
is($s->{status}, 'succeeded', 'its run');

# (d) what fails, wherever it can be seen, a minute later
set_clock('2027-03-28 00:01:05');
my %fails = (
	'large' => [ qr/message is too large/, 'report.large', 'report.large-2027-03-28' ],
	'lost queue' => [ qr/queue "doomed" does not exist/, 'report.lost', 'report.lost-2027-03-28' ],
	'syntax' => [ qr/syntax error/ ],
	'revoked' => [ qr/permission denied for function enqueue/, 'app.plain' ],
	'of leaver' => [ qr/role "leaver" does not exist/, 'leaver.work' ]);
for my $name (sort keys %fails)
{
	my ($message, $type, $id) = @{ $fails{$name} };
	$s = status($name);
	is($s->{status}, 'failed', "$name: failed");
	like($s->{error}, $message, "$name: and why");
	is($s->{last_failure}, $s->{last_run}, "$name: and when") if $s->{last_run};
	is($s->{task_type}, $type, "$name: and for which task") if $type;
	like(value($dbh, q(SELECT return_message FROM cron.job_run_details JOIN cron.job USING (jobid) WHERE jobname = $1), $name), $message, "$name: in job_run_details");
	like($text, $message, "$name: in the server log");
	next unless $id;
	my $context = qr/enqueue of a task of type "$type" with deduplication_id "$id"/;
	like($text, qr/CONTEXT:  $context/, "$name: the log names the task");
	like($s->{error}, $context, "$name: and so does the status");
	is_deeply($s->{missed_periods}, [$id], "$name: its period is missed, though it is not over");
}
# Once pg_cron reads its entries again it runs none, until that one is gone.
$dbh->do(q(UPDATE cron.job SET active = active WHERE jobname = 'of app'));
$node->wait_for_log(qr/pg_cron launcher ERROR:  role "leaver" does not exist/, $log);
like(status('of app')->{hint}, qr/^An entry in cron\.job belongs to a role that does not exist: .* Delete that entry/, 'the status of all entries says so');
my $started = -s $node->logfile;
$dbh->do(q(DELETE FROM cron.job WHERE username = 'leaver'));
$node->wait_for_log(qr/pg_cron scheduler started/, $started);
ok(poll(sub { !defined status('of app')->{hint} }), 'and that is all it takes');
is(status('close here')->{hint}, 'What it enqueues cannot be seen: no statement of its command calls enqueue itself.', 'what a DO block enqueues is not seen');
unlike($text, qr/xxxxxxxx/, 'no payload is in the log');
$s = status('of app');
is($s->{status}, 'succeeded', 'the others go on');
is($s->{last_period}, 'app.work-2027-03-28', 'with their period');
is($s->{last_task}, value($dbh, q(SELECT task_id FROM taskoutbox.deduplication WHERE deduplication_id = 'app.work-2027-03-28')), 'and their task');
is_deeply($s->{missed_periods}, [], 'nothing missed');
is($s->{duration} =~ /^00:00:\d\d\.\d+$/ ? 1 : $s->{duration}, 1, 'and how long it took');
is(value($dbh, q(SELECT count(*) FROM taskoutbox.schedule_status WHERE jobname IN ('unrelated', 'at six', 'purge run log'))), 0, 'other entries are not ours to show');

# The remedy for a failure is to do away with its cause, and one call.
value($dbh, q(SELECT taskoutbox.create_queue('doomed')));
is(value($dbh, q(SELECT duplicate FROM taskoutbox.enqueue_period('report.lost', 'day', queue => 'doomed'))), 0, 'filled by hand');
$s = status('lost queue');
is_deeply([ $s->{status}, $s->{missed_periods}, $s->{last_period} ], [ 'failed', [], 'report.lost-2027-03-28' ], 'the run has failed, the period is not missed any more');

# C41
is(value($dbh, 'SELECT min(runid) FROM cron.job_run_details'), -29, 'C41: the purge entry keeps 30 days of runs');

# Who may see what
$dbh->do('GRANT SELECT ON taskoutbox.schedule_status TO app');
$dbh->do('GRANT EXECUTE ON FUNCTION taskoutbox.get_schedule_status TO app');
is(join(' ', map { $_->{jobname} } rows($app, 'SELECT jobname FROM taskoutbox.schedule_status ORDER BY 1')), 'of app revoked', 'a role sees its own entries');
is(status('of app', $app)->{last_period}, 'app.work-2027-03-28', 'with their tasks, and no right on our tables');
$dbh->do('REVOKE USAGE ON SCHEMA cron FROM app');
my ($rc, $out, $err) = $node->psql('postgres', 'SELECT count(*) FROM taskoutbox.schedule_status', extra_params => [ '-U', 'app' ]);
is("$rc $out", '0 0', 'without the right to read the tables of pg_cron: nothing, and no error');
like($err, qr/NOTICE:  schedules are not known: permission denied for the tables of pg_cron\nHINT:  Grant USAGE/, 'and it says why');

# Nobody's functions and operators come between.
my $hostile = session($node);
$hostile->do('CREATE SCHEMA evil');
$hostile->do(q(CREATE FUNCTION evil.sprung() RETURNS void LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''trap!''; END'));
for my $type (map { "pg_catalog.$_" } qw(text name oid int8 int4 timestamptz), '"char"')
{
	(my $f = $type) =~ s/\W/_/g;
	$hostile->do(qq(CREATE FUNCTION evil.op_$f($type, $type) RETURNS bool LANGUAGE sql AS 'SELECT evil.sprung(); SELECT true'));
	$hostile->do("CREATE OPERATOR evil.$_ (LEFTARG = $type, RIGHTARG = $type, FUNCTION = evil.op_$f)") for '=', '>', '-';
}
$hostile->do(qq(CREATE FUNCTION evil.$_ LANGUAGE sql AS 'SELECT evil.sprung(); SELECT NULL::pg_catalog.text'))
  for 'lower(pg_catalog.text) RETURNS pg_catalog.text', 'max(pg_catalog.int8) RETURNS pg_catalog.text', 'now() RETURNS pg_catalog.text';
$hostile->do('CREATE DOMAIN evil.text AS pg_catalog.int4');
$hostile->do('SET search_path = evil, pg_catalog');
is(state_of($hostile, q(SELECT 'r'::"char" = 'r'::"char")), 'P0001', 'the traps work');
my ($trapped) = rows($hostile, q(SELECT last_period, missed_periods FROM taskoutbox.schedule_status WHERE jobname OPERATOR(pg_catalog.=) 'of app'));
is($trapped->{last_period}, 'app.work-2027-03-28', 'schedule_status steps into none of them');
($trapped) = rows($hostile, q(SELECT period_id FROM taskoutbox.missed_periods('nothing', 'day', since => '2027-03-27')));
is($trapped->{period_id}, 'nothing-2027-03-27', 'nor does missed_periods');
is(value($hostile, q(SELECT duplicate FROM taskoutbox.enqueue_period('app.work', 'day'))), 1, 'nor enqueue_period');
$hostile->disconnect;

#
# The log of runs, and the schedules, as pg_cron reads them
#

# Entries that never fire in this test, with a first run long ago: what was due since
# then, to the quarter of an hour.  The right column says the same in SQL.
$dbh->do('DELETE FROM cron.job_run_details');
my %crontabs = (
	'*/20 1-5 * * *' => 'mi % 20 = 0 AND h BETWEEN 1 AND 5',
	'30 4 1,15 * 5' => 'mi = 30 AND h = 4 AND (d IN (1, 15) OR w = 5)',
	'0 9-17/2 * * mon-fri' => 'mi = 0 AND h IN (9, 11, 13, 15, 17) AND w BETWEEN 1 AND 5',
	'5,50 0 * 2,Mar *' => 'mi IN (5, 50) AND h = 0 AND mo IN (2, 3)',
	'0 0 29-31 * *' => 'mi = 0 AND h = 0 AND d >= 29',
	'0 12 */7 * MON' => 'mi = 0 AND h = 12 AND d % 7 = 1 AND w = 1',
	'59 23 * * 0' => 'mi = 59 AND h = 23 AND w = 0',
	'59 23 * * 7' => 'mi = 59 AND h = 23 AND w = 0',
	'59 23 * * 5-7' => 'mi = 59 AND h = 23 AND w IN (5, 6, 0)',
	'@hourly' => 'mi = 0',
	'@weekly' => 'mi = 0 AND h = 0 AND w = 0',
	'@monthly' => 'mi = 0 AND h = 0 AND d = 1',
	'@yearly' => 'mi = 0 AND h = 0 AND d = 1 AND mo = 1',
	'@daily' => 'mi = 0 AND h = 0',
	'@reboot' => 'false',
	'* * * * *' => 'true');
# Later versions of pg_cron have these; this one only keeps them.
my %newer = ('10 3 $ * *' => q(mi = 10 AND h = 3 AND t::date = (date_trunc('month', t) + interval '1 month')::date - 1), '30 seconds' => 'true');
my $n = 0;
my %expected;
for my $when (sort(keys %crontabs), sort(keys %newer))
{
	my $name = 'tab ' . ++$n;
	if ($crontabs{$when})
	{
		schedule($name, $when, qq(SELECT taskoutbox.enqueue_period('tab$n', 'quarter-hour')));
		$dbh->do('UPDATE cron.job SET active = false WHERE jobname = $1', undef, $name);
	}
	else
	{
		$dbh->do('INSERT INTO cron.job (jobname, schedule, command, active, nodeport) VALUES ($1, $2, $3, false, 0)', undef,
			$name, $when, qq(SELECT taskoutbox.enqueue_period('tab$n', 'quarter-hour')));
	}
	$expected{$name} = [ $when, $crontabs{$when} || $newer{$when} ];
}
$dbh->do(q(INSERT INTO cron.job_run_details (jobid, runid, status, start_time)
	SELECT jobid, nextval('cron.runid_seq'), 'failed', '2026-11-30 12:00Z' FROM cron.job WHERE jobname LIKE 'tab %'));
set_clock('2027-03-28 12:07:30');
my %missed = map { $_->{jobname} => $_ } rows($dbh, q(SELECT jobname, hint, array_to_string(missed_starts, ' ') AS starts FROM taskoutbox.schedule_status WHERE jobname LIKE 'tab %'));
for my $name (sort keys %expected)
{
	my ($when, $condition) = @{ $expected{$name} };
	is( $missed{$name}{starts},
		value($dbh, qq(SELECT coalesce(string_agg(DISTINCT date_bin('15 min', t, '2000-01-01')::text || '+00', ' ' ORDER BY date_bin('15 min', t, '2000-01-01')::text || '+00'), '')
			FROM generate_series(timestamp '2026-11-30 12:00', '2027-03-28 12:06', '1 min') t,
				LATERAL (SELECT extract(minute FROM t) AS mi, extract(hour FROM t) AS h, extract(day FROM t) AS d, extract(month FROM t) AS mo, extract(dow FROM t) AS w) f
			WHERE $condition)),
		"due: $when");
}
is($missed{'tab 1'}{hint}, 'It is not active.', 'an entry that is not active says so');
$dbh->do(q(DELETE FROM cron.job WHERE jobname LIKE 'tab %'));

# What a command enqueues, and for which periods
sub entry
{
	my ($command, $when, $first_run) = @_;
	my $name = 'entry ' . ++$n;
	schedule($name, $when || '0 1 * * *', $command);
	$dbh->do(q(INSERT INTO cron.job_run_details (jobid, runid, status, start_time)
		SELECT jobid, nextval('cron.runid_seq'), 'failed', $2::timestamptz FROM cron.job WHERE jobname = $1), undef, $name, $first_run || '2027-03-24 01:00Z');
	my @s = rows($dbh, 'SELECT * FROM taskoutbox.schedule_status WHERE jobname = $1', $name);
	$dbh->do('SELECT cron.unschedule($1)', undef, $name);
	return @s;
}
sub missed
{
	my ($status) = @_;
	return join(' ', map { s/.*?-(?=\d{4})//r } @{ $status->{missed_periods} || ['unknown'] });
}
($s) = entry(q(SELECT taskoutbox.enqueue_period('a', 'day')));
is(missed($s), '2027-03-24 2027-03-25 2027-03-26 2027-03-27 2027-03-28', 'every day since the first run, today too');
($s) = entry(q(SELECT taskoutbox.enqueue_period('a', 'day')), '0 13 * * *', '2027-03-25 13:00Z');
is(missed($s), '2027-03-25 2027-03-26 2027-03-27', 'but not before it was due');
($s) = entry(q(SELECT taskoutbox.enqueue_period('a', 'day')), '0 1 * * 1-5');
is(missed($s), '2027-03-24 2027-03-25 2027-03-26', 'nor on days on which it is not due');
($s) = entry(q(SELECT taskoutbox.enqueue_period('a', 'day', timezone => 'Europe/Berlin')), '30 22 * * *', '2027-03-25 22:30Z');
is(missed($s), '2027-03-25 2027-03-26 2027-03-27', '22:30 UTC is 23:30 in Berlin, and half past midnight tomorrow');
set_clock('2027-03-30 12:07:30');
($s) = entry(q(SELECT taskoutbox.enqueue_period('a', 'day', timezone => 'Europe/Berlin')), '30 22 * * *', '2027-03-25 22:30Z');
is(missed($s), '2027-03-25 2027-03-26 2027-03-27 2027-03-28 2027-03-29 2027-03-30', 'C36: the day on which it was never due is missed');
($s) = entry(q(select "taskoutbox".enqueue_period('a', period := 'month', at := now() - '1 day'::interval, payload := '{}'::jsonb) -- taskoutbox.enqueue_period),
	'10 0 1 * *', '2027-01-01 00:10Z');
is(missed($s), '2026-12 2027-01 2027-02', 'months that are closed on the first of the next one');
($s) = entry(q(SELECT taskoutbox.enqueue_period('a', 'hour', at => current_timestamp + interval '2 hours')), '0 * * * *', '2027-03-30 10:00Z');
is(missed($s), '2027-03-30T12Z 2027-03-30T13Z 2027-03-30T14Z', 'ahead of time');
($s) = entry(q(SELECT TaskOutbox.Enqueue('a', deduplication_id => taskoutbox.period_id('b', 'day', at => now()), deduplication_window => interval '1 year 40 days')));
is(missed($s), '2027-03-24 2027-03-25 2027-03-26 2027-03-27 2027-03-28 2027-03-29 2027-03-30', 'the plain form');
is($s->{id_prefix}, 'b', 'with a prefix of its own');
like($s->{hint}, qr/enqueue_period does not fill its gaps/, 'and it says what that means');
my @two = entry(q(SELECT taskoutbox.enqueue_period('a', 'day'); INSERT INTO t SELECT e.id FROM taskoutbox.enqueue_period('b', 'week', queue => 'q') e));
is(join(' ', map { "$_->{task_type}/$_->{queue}/$_->{period}" } @two), 'a/default/day b/q/week', 'two calls are two rows');
for my $unknown (
	[ q(SELECT taskoutbox.enqueue('a')), qr/use enqueue_period/ ],
	[ q(SELECT taskoutbox.enqueue('a', deduplication_id => 'a-' || current_date)), qr/use enqueue_period/ ],
	[ q(SELECT taskoutbox.enqueue('a', deduplication_id => taskoutbox.period_id('a', 'day'))), qr/deduplication_window => '400 days'/ ],
	[ q(SELECT taskoutbox.enqueue('a', deduplication_id => taskoutbox.period_id('a', 'day'), deduplication_window => '399 days')), qr/deduplication_window => '400 days'/ ],
	[ q(SELECT taskoutbox.enqueue_period('a', 'day', at => date_trunc('day', now()))), qr/not all arguments are constants/ ],
	[ q(SELECT taskoutbox.enqueue_period(t, 'day') FROM types t), qr/not all arguments are constants/ ],
	[ q(SELECT taskoutbox.enqueue_period('a', 'day', timezone => 'Europe/Berln')), qr/period or timezone is not known/ ],
	[ q(CALL work('taskoutbox.enqueue')), qr/cannot be seen/ ],
	[ q{SELECT taskoutbox.enqueue('}, qr/cannot be seen/ ])
{
	($s) = entry($unknown->[0]);
	is(missed($s), 'unknown', "not known: $unknown->[0]");
	like($s->{hint}, $unknown->[1], 'and it says why');
}

#
# (c), C34: the server is down when an entry is due
#

$dbh->do('DELETE FROM cron.job');
$dbh->do('DELETE FROM cron.job_run_details');
value($dbh, q(SELECT taskoutbox.purge('default')));
schedule('close', '10 0 1 * *', q(SELECT taskoutbox.enqueue_period('book.close', 'month', timezone => 'Europe/Berlin', at => now() - interval '1 day')));
schedule('statement', '10 0 * * *', q(SELECT taskoutbox.enqueue_period('book.statement', 'day', '{"pages": 3}', timezone => 'Europe/Berlin')));
set_clock('2027-04-01 00:09:58');
wait_for_runs(2);
is(tasks('book.close') . ' ' . tasks('book.statement'), 'book.close-2027-03 book.statement-2027-04-01', 'they run on the first of the month');
$node->stop;
set_clock('2027-05-01 00:05:00');
with_clock(sub { $node->start });
wait_for_relay($node);
$dbh = session($node);
is_deeply(status('close')->{missed_periods}, [], 'five minutes before it is due the close of April is not missed');
is(scalar @{ status('statement')->{missed_periods} }, 29, '29 days of April are');
$node->stop;
set_clock('2027-05-01 06:00:00');
with_clock(sub { $node->start });
wait_for_relay($node);
$dbh = session($node);
$s = status('close');
is_deeply($s->{missed_periods}, ['book.close-2027-04'], 'six hours later it is, though it was due once a month only');
is($s->{last_period}, 'book.close-2027-03', 'and the last one is shown');
$s = status('statement');
is(scalar @{ $s->{missed_periods} }, 30, 'and so are 29 days of April and the first of May');
is(value($dbh, q(SELECT count(*) || ' ' || max(period_id) FROM taskoutbox.missed_periods('book.statement', 'day', 'Europe/Berlin'))),
	'29 book.statement-2027-04-30', 'missed_periods has those that are over');

# Filled with one call, as doc/schedules.md has it; nothing more comes of a second one, or of a third at once.
open $doc, '<', 'doc/schedules.md' or die $!;
my ($fill) = do { local $/; <$doc> } =~ /(SELECT count\(\*\)[^;]*unnest\(s\.missed_starts\)[^;]*);/s;
close $doc;
ok($fill, 'doc/schedules.md says how to fill');
for my $job (qw(close statement))
{
	(my $sql = $fill) =~ s/'daily interest'/'$job'/;
	my $two = session($node);
	$two->do('BEGIN');
	$two->do($sql);
	my $sth = start_query($dbh, $sql);
	poll(sub { value($two, q(SELECT count(*) FROM pg_locks WHERE NOT granted)) }) or die 'the second does not wait';
	$two->do('COMMIT');
	wait_query($sth);
	$dbh->do($sql);
	is_deeply(status($job)->{missed_periods}, [], "$job: filled");
}
is(value($dbh, q(SELECT count(*) || ' ' || count(DISTINCT deduplication_id) FROM taskoutbox.task_outbox WHERE task_type = 'book.statement')), '31 31', 'each period has one task');
my %got = map { $_->{deduplication_id} => $_->{headers} } drain($dbh);
is(scalar(keys %got), 33, 'they are consumed');
is($got{'book.close-2027-04'}, '{"period": "month", "timezone": "Europe/Berlin", "period_start": "2027-04-01T00:00:00+02"}', 'and know which period they are for');
for my $job (qw(close statement))
{
	(my $sql = $fill) =~ s/'daily interest'/'$job'/;
	$dbh->do($sql);
	$dbh->do(q(SELECT taskoutbox.enqueue_period('book.statement', 'day', timezone => 'Europe/Berlin', at => '2027-04-15')));
}
is(value($dbh, q(SELECT coalesce(string_agg(task_outbox::text, ' '), '') FROM taskoutbox.task_outbox WHERE queue = 'default')), '', 'filling again adds nothing, when they are done too');

#
# C35: the clock is set back by eight hours
#

$dbh->do('DELETE FROM cron.job');
$dbh->do('DELETE FROM cron.job_run_details');
schedule('hourly', '0 * * * *', q(SELECT taskoutbox.enqueue_period('ship.orders', 'hour')));
set_clock('2027-05-09 07:59:58');
wait_for_runs(1);
set_clock('2027-05-09 17:59:58');
wait_for_runs(2);
set_clock('2027-05-09 09:59:58');
# Our own timers do not care.
value($dbh, q(SELECT id FROM taskoutbox.enqueue('after the step')));
my $t = mono();
is(join(' ', sort map { $_->{task_type} } drain($dbh)), 'after the step ship.orders ship.orders', 'C35: tasks are delivered');
cmp_ok(mono() - $t, '<', 10, 'at once');
# Whether pg_cron runs now is its business.  (1.4 waits until its clock is back where it
# was.)  What it does not do is seen: two minutes after ten, and at noon.
set_clock('2027-05-09 10:01:58');
ok( poll(
		sub {
			my ($ran) = rows($dbh, q(SELECT 1 FROM taskoutbox.deduplication WHERE deduplication_id = 'ship.orders-2027-05-09T10Z'));
			my $missed = grep { $_ eq 'ship.orders-2027-05-09T10Z' } @{ status('hourly')->{missed_periods} };
			return $ran || $missed;
		}),
	'an hour that pg_cron leaves out is missed, at once');
set_clock('2027-05-09 12:30:00');
is(value($dbh, q(SELECT count(*) FROM unnest($1::text[]) id
		WHERE NOT EXISTS (SELECT FROM taskoutbox.deduplication WHERE deduplication_id = id) AND NOT id = ANY ((SELECT missed_periods FROM taskoutbox.schedule_status)::text[])),
		[ map { "ship.orders-2027-05-09T$_" . 'Z' } 10, 11, 12 ]),
	0, 'and so are the others');

#
# Another database than pg_cron's, and several
#

$dbh->do('CREATE DATABASE shop');
my $shop = session($node, dbname => 'shop');
$shop->do('CREATE EXTENSION taskoutbox');
value($dbh, q(SELECT cron.schedule_in_database('shop entry', '0 * * * *', $$SELECT taskoutbox.enqueue_period('shop.count', 'hour')$$, 'shop')));
set_clock('2027-05-10 05:59:58');
poll(sub { value($shop, 'SELECT count(*) FROM taskoutbox.task_outbox') }) or die 'the entry in shop does not run';
poll(sub { status('shop entry')->{status} eq 'succeeded' }) or die 'no status';
$s = status('shop entry');
is($s->{hint}, 'Its tasks are in another database: which periods had one is shown there.', q(pg_cron's database has the runs, and says where the tasks are));
is("$s->{database} $s->{task_type}", 'shop shop.count', 'and which');
($rc, $out, $err) = $node->psql('shop', 'SELECT count(*) FROM taskoutbox.schedule_status');
is("$rc $out", '0 0', 'there is nothing in the other database');
like($err, qr/pg_cron is not installed in this database\nHINT:  Look into database "postgres"/, 'it says where to look');

open $doc, '<', 'doc/schedules.md' or die $!;
my ($foreign) = do { local $/; <$doc> } =~ /```sql\n(CREATE EXTENSION postgres_fdw.*?)```/s;
close $doc;
ok($foreign, 'doc/schedules.md says how to see it there');
$foreign =~ s/dbname 'postgres'/dbname 'postgres', host '@{[$node->host]}', port '@{[$node->port]}'/;
$foreign =~ s/user 'postgres'/user '$me'/;
$shop->do($foreign);
$s = status('shop entry', $shop);
is_deeply([ @$s{qw(status last_period missed_periods hint)} ], [ 'succeeded', 'shop.count-2027-05-10T06Z', [], undef ], 'with foreign tables it is seen there');
is(status('hourly', $shop)->{hint}, 'Its tasks are in another database: which periods had one is shown there.', 'and so are the entries for others');
$shop->do('CREATE ROLE stranger');
$shop->do('ALTER FOREIGN TABLE cron.job OWNER TO stranger');
is(value($shop, 'SELECT count(*) FROM taskoutbox.schedule_status'), 0, 'foreign tables of just anybody are not read');

#
# pg_cron does not run, or keeps no log
#

$node->append_conf('postgresql.conf', 'cron.log_run = off');
with_clock(sub { $node->restart });
$dbh = session($node);
ok(poll(sub { status('hourly')->{hint} eq 'Runs are not known: set cron.log_run = on.' }), 'without cron.log_run it says so');
$node->append_conf('postgresql.conf', "shared_preload_libraries = 'taskoutbox'");
with_clock(sub { $node->restart });
$dbh = session($node);
is(status('hourly')->{hint}, 'pg_cron does not run: look into the server log, and restart the server.', 'without its launcher nothing would run, and it says so');
# A dump takes nothing of pg_cron's with it, and DROP EXTENSION does not mind.
$dbh->do('DROP EXTENSION pg_cron');
is(value($dbh, 'SELECT count(*) FROM taskoutbox.schedule_status'), 0, 'pg_cron is gone');

done_testing();
