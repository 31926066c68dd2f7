# What is wrong with one queue in SQS, of every kind, for long: its tasks wait, none
# dies and none is counted, the figures say what is wrong and what to do, and it goes
# on by itself, in order, when it is right again.  Other queues, in SQS and embedded
# ones, do not notice.  And while SQS hangs, nothing else in the server does.  Cases C06, C44, C51,
# C54, C75 to C77, C80.
#
# TASKOUTBOX_TRIES: how often each fault is to be met (default 4), and a 503 ten times as often.  Pauses are
# up to 5 minutes by default and 50 ms here, so ten tries stand for more than 10 minutes.
# TASKOUTBOX_HANG: for how many seconds SQS hangs (default 5).

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FakeSqs;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use SqsTest;
use TaskoutboxTest;
use Test::More;
use Time::HiRes qw(usleep);

plan skip_all => FakeSqs::missing() if FakeSqs::missing();

my $tries = $ENV{TASKOUTBOX_TRIES} || 4;
my $hang = $ENV{TASKOUTBOX_HANG} || 5;
my $dir = PostgreSQL::Test::Utils::tempdir;
my $bundle = "$dir/ca.pem";
note "TASKOUTBOX_TRIES=$tries TASKOUTBOX_HANG=$hang";

# The fake has TLS, too; the server trusts it when that file has its certificate.
my $secure = FakeSqs->start(tls => 1);
my $stranger = FakeSqs->start(tls => 1);

sub trust
{
	my ($who) = @_;
	open my $file, '>', "$bundle.new" or die "$bundle: $!";
	print $file slurp_file($who->ca_file);
	close $file;
	rename "$bundle.new", $bundle or die $!;
	return;
}
trust($stranger);

$ENV{AWS_CA_BUNDLE} = $bundle;
my $sqs = FakeSqs->start(log => "$PostgreSQL::Test::Utils::log_path/sqs.log");
my $node;
{
	local %ENV = (%ENV, $sqs->environment);
	delete $ENV{AWS_ENDPOINT_URL_SQS};
	$node = new_node('sqs_outages', conf => "taskoutbox.request_timeout = '1s'\nlog_error_verbosity = terse\n");
}
$secure->control('credentials', key => $sqs->access_key, secret => $sqs->secret_key);
my $dbh = session($node);
my $n = 0;

sub put
{
	my ($queue, $payload, $group) = @_;
	return enqueue($dbh, $group, $payload, $queue);
}

sub bodies
{
	my ($at, $queue) = @_;
	return map { $_->{body} } $at->accepted("$queue.fifo", 'body');
}

sqs_queue($dbh, $sqs, 'other');

# Others do their work meanwhile.
sub others_work
{
	my ($what) = @_;
	my $slowest = 0;

	for my $i (1 .. 3)
	{
		my $body = qq("other @{[ ++$n ]}");
		my $start = mono();
		put('other', $body);
		poll(sub { (grep { $_ eq $body } bodies($sqs, 'other')) == 1 }, 10) or fail("$what: another queue in SQS");
		put('default', $body);
		my ($m) = receive($dbh, wait => '10 s');
		is($m && $m->{payload}, $body, "$what: the embedded queue") unless $m && $m->{payload} eq $body;
		value($dbh, 'SELECT taskoutbox.delete($1::text)', $m->{receipt_handle});
		$slowest = mono() - $start if mono() - $start > $slowest;
	}
	cmp_ok($slowest, '<', 2, "$what: other queues do not notice");
	is(metrics($dbh, 'other')->{problem}, undef, "$what: nor have they a problem");
	return;
}

# A new queue is broken already.  at: where its messages are to come; mend: makes it right; tries: counts how
# often it was met (default: the pauses that were planned).
sub outage
{
	my ($what, $queue, $problem, $remedy, %how) = @_;
	my $at = $how{at} || $sqs;
	my @tasks = map { [ $_, 'g' . $_ % 3 ] } 1 .. 12;

	put($queue, $_->[0], $_->[1]) for @tasks;
	my $row = problem_is($dbh, $queue, $problem);
	ok($row, "$what: is told") or diag explain(metrics($dbh, $queue));
	like($row->{remedy}, $remedy, "$what: with the remedy");
	ok($row->{next_try}, "$what: and when the next try is");
	my $since = $row->{problem_since};
	others_work($what);

	my %planned;
	my $met = $how{tries} || sub {
		$planned{ metrics($dbh, $queue)->{next_try} } = 1;
		return scalar(keys %planned);
	};
	ok(poll(sub { $met->() >= ($how{times} || $tries) }), "$what: it is tried again");
	($row) = metrics($dbh, $queue);
	like($row->{problem}, $problem, "$what: still told");
	is($row->{problem_since}, $since, "$what: since it began");
	is($row->{dead}, 0, "$what: none is dead");
	is($row->{waiting} + $row->{in_flight}, scalar(@tasks), "$what: all wait");
	is(value($dbh, q{SELECT count(*) FROM taskoutbox.task_outbox WHERE queue = $1 AND receive_count IS NULL AND last_error IS NULL}, $queue),
		scalar(@tasks), "$what: none is counted");

	$how{mend}->();
	ok(outbox_is_empty($dbh, $queue, 30), "$what: goes on by itself");
	my @now = bodies($at, $queue);
	is(join(' ', sort { $a <=> $b } @now), join(' ', map { $_->[0] } @tasks), "$what: all came, once");
	is(join(' ', map { my $g = $_; grep { $_ % 3 == $g } @now } 0 .. 2), join(' ', map { my $g = $_; grep { $_ % 3 == $g } 1 .. 12 } 0 .. 2),
		"$what: in order");
	is(metrics($dbh, $queue)->{dead}, 0, "$what: no dead letter");
	ok(problem_is($dbh, $queue, undef), "$what: nothing is wrong any more");
	my $log = log_of($node);
	is(scalar(grep { $_ =~ $problem } $log =~ /queue "$queue" is stopped: (.*)/g), 1, "$what: one line in the log") or note $log;
	is(scalar(() = $log =~ /queue "$queue" goes on/g), 1, "$what: and one when it goes on");
	return;
}

# What SQS answers.
sub planted
{
	my ($what, $problem, $remedy, @faults) = @_;
	(my $queue = lc $what) =~ s/\W+/_/g;
	sqs_queue($dbh, $sqs, $queue, retry_cap => '50 ms');
	ok(poll(sub { metrics($dbh, $queue)->{sqs_looked_at} }), "$what: worked before");
	my @numbers = map { $sqs->plant(op => 'SendMessageBatch', queue => "$queue.fifo", %$_) } @faults;
	outage($what, $queue, $problem, $remedy,
		times => $what =~ /503/ ? 10 * $tries : $tries, tries => sub { $sqs->hits($numbers[0]) }, mend => sub { $sqs->clear });
	return;
}
planted('AccessDenied', qr/^AccessDenied: SQS refuses SendMessageBatch/, qr/sqs:SendMessage/, { do => 'error', code => 'AccessDenied', status => 403 });
planted('ExpiredToken', qr/^ExpiredToken: SQS refuses the credentials/, qr/have expired/, { do => 'error', code => 'ExpiredTokenException', status => 403 });
planted('QueueDoesNotExist', qr/^QueueDoesNotExist/, qr/url/, { do => 'error', code => 'QueueDoesNotExist', status => 400 });
planted('KMS per entry', qr/^KmsAccessDenied/, qr/KMS key/, { do => 'entry', entries => [ 0 .. 9 ], code => 'KmsAccessDenied', sender_fault => \1 });
planted('KMS throttles per entry', qr/^KmsThrottled/, qr/lower rate/, { do => 'entry', entries => [ 0 .. 9 ], code => 'KmsThrottled', sender_fault => \1 });
planted('503', qr/^SendMessageBatch fails: ServiceUnavailable/, qr/whether SQS works/, { do => 'error', code => 'ServiceUnavailable', status => 503 });
planted('503 of a proxy', qr/^SendMessageBatch fails: HTTP status 503/, qr/what stands between/,
	{ do => 'answer', kind => 'html', status => 503, content_type => 'text/html', when => 'before' });
planted('throttled', qr/^RequestThrottled/, qr/throughput mode|rate/, { do => 'error', code => 'RequestThrottled', status => 403 });
planted('the clock', qr/clock of this host is off by/, qr/Set the clock/,
	{ do => 'error', code => 'InvalidSignatureException', status => 403 }, { do => 'date', seconds => 1200 });
planted('no answer', qr/^SendMessageBatch fails: .*timed out/i, qr/whether SQS works/, { do => 'delay' });

# A queue without dead letters, until it has some
{
	sqs_queue($dbh, $sqs, 'no_dlq', plain => 1, retry_cap => '50 ms');
	$sqs->create_queue('no_dlq-dead.fifo');
	my $policy = JSON::PP::encode_json({ deadLetterTargetArn => $sqs->queue('no_dlq-dead.fifo')->{arn}, maxReceiveCount => 3 });
	outage('no DLQ', 'no_dlq', qr/has no dead-letter queue/, qr/RedrivePolicy/,
		mend => sub { $sqs->call('SetQueueAttributes', QueueUrl => $sqs->url('no_dlq.fifo'), Attributes => { RedrivePolicy => $policy }) });
}

# Nobody there, until there is
{
	my $port = PostgreSQL::Test::Cluster::get_free_port();
	my $late;
	value($dbh, q{SELECT taskoutbox.create_queue('refused', 'sqs', url => $1, retry_base => '20 ms', retry_cap => '50 ms')},
		"http://127.0.0.1:$port/123456789012/refused.fifo");
	my $accepted = bless {}, 'LateSqs';
	outage('connection refused', 'refused', qr/^no connection: /, qr/Check the network/, at => $accepted,
		mend => sub {
			$late = FakeSqs->start(port => $port);
			$late->create_queue_with_dead_letters('refused.fifo', 3);
			$$accepted{sqs} = $late;
		});
}

# A name that nobody knows; nothing but other settings can mend that here
{
	$sqs->create_queue_with_dead_letters('dns.fifo', 3);
	value($dbh, q{SELECT taskoutbox.create_queue('dns', 'sqs', url => $1, endpoint => $2, allow_http => true, retry_base => '20 ms', retry_cap => '50 ms')},
		$sqs->url('dns.fifo'), 'http://sqs.no-such-host.invalid:80');
	outage('DNS', 'dns', qr/^no connection: .*(?:resolve|Resolving)/, qr/the name service/,
		mend => sub { $dbh->do(q{SELECT taskoutbox.alter_queue('dns', endpoint => $1)}, undef, $sqs->endpoint) });
}

# A certificate that is not known, until it is
{
	my ($url) = $secure->create_queue_with_dead_letters('tls.fifo', 3);
	value($dbh, q{SELECT taskoutbox.create_queue('tls', 'sqs', url => $1, endpoint => $2, retry_base => '20 ms', retry_cap => '50 ms')}, $url, $secure->https_endpoint);
	outage('TLS', 'tls', qr/^no connection: .*certificate/, qr/certificates/, at => $secure, mend => sub { trust($secure) });
}

#
# SQS hangs, for longer than a request may take
#
{
	sqs_queue($dbh, $sqs, 'hangs');
	ok(poll(sub { metrics($dbh, 'hangs')->{sqs_looked_at} }), 'hang: worked before');
	$node->append_conf('postgresql.conf', "taskoutbox.request_timeout = '" . ($hang > 20 ? 20 : $hang / 2) . "s'");
	$node->reload;
	my $fault = $sqs->plant(op => 'SendMessageBatch', queue => 'hangs.fifo', do => 'delay');
	put('hangs', $_, "g$_") for 1 .. 20;
	ok(poll(sub { $sqs->hits($fault) }), 'hang: begins');

	my $end = mono() + $hang;
	my ($held, $samples, $slowest, $rounds) = (0, 0, 0, 0);
	my $timed = sub {
		my ($sql) = @_;
		my $start = mono();
		$dbh->do($sql);
		$slowest = mono() - $start if mono() - $start > $slowest;
	};
	while (mono() < $end)
	{
		# Longer than a round, that is.
		$held += value($dbh, q{SELECT count(*) FROM pg_stat_activity a WHERE backend_type = 'taskoutbox relay' AND xact_start < clock_timestamp() - '500 ms'::interval
			AND (backend_xmin IS NOT NULL OR backend_xid IS NOT NULL OR EXISTS (SELECT FROM pg_locks l WHERE l.pid = a.pid AND l.locktype <> 'virtualxid'))});
		if ($samples++ % 20 == 0)
		{
			$rounds++;
			$dbh->do('CREATE DATABASE elsewhere');
			$timed->('DROP DATABASE elsewhere');
			$timed->('VACUUM FULL taskoutbox.task_outbox');
			others_work('hang');
		}
		usleep(50_000);
	}
	is($held, 0, "hang: no snapshot and no lock of the relay, in $samples looks");
	cmp_ok($slowest, '<', 3, "hang: neither DROP DATABASE elsewhere nor VACUUM FULL waits, $rounds times");
	is(metrics($dbh, 'hangs')->{dead}, 0, 'hang: none is dead');
	is(value($dbh, q{SELECT count(*) FROM taskoutbox.task_outbox WHERE queue = 'hangs' AND receive_count IS NULL}), 20, 'hang: none is counted');

	# Here: a database whose own relay waits for SQS
	$dbh->do('CREATE DATABASE here');
	my $here = session($node, dbname => 'here');
	$here->do('CREATE EXTENSION taskoutbox');
	wait_for_relay($node, 'here');
	sqs_queue($here, $sqs, 'here');
	my $second = $sqs->plant(op => 'SendMessageBatch', queue => 'here.fifo', do => 'delay');
	enqueue($here, undef, 1, 'here');
	ok(poll(sub { $sqs->hits($second) }), 'hang: another one');
	$here->disconnect;
	my $start = mono();
	$dbh->do('DROP DATABASE here');
	cmp_ok(mono() - $start, '<', 3, 'hang: DROP DATABASE of the one that waits');

	$sqs->clear;
	ok(outbox_is_empty($dbh, 'hangs'), 'hang: goes on by itself');
	is(join(' ', sort { $a <=> $b } bodies($sqs, 'hangs')), join(' ', 1 .. 20), 'hang: all came, once');

	$fault = $sqs->plant(op => 'SendMessageBatch', queue => 'hangs.fifo', do => 'delay');
	put('hangs', 21);
	ok(poll(sub { $sqs->hits($fault) }), 'hang: and once more');
	$dbh->disconnect;
	$start = mono();
	$node->stop('fast');
	cmp_ok(mono() - $start, '<', 3, 'hang: a fast shutdown does not wait');
	$sqs->clear;
}
unlike(log_of($node), qr/PANIC|relay (?:ERROR|FATAL):  (?!terminating|database \d+ does not exist)/, 'no error of a relay');

done_testing();

# A fake that is not there yet has accepted nothing.
package LateSqs;

sub accepted
{
	my ($self, @args) = @_;
	return $self->{sqs} ? $self->{sqs}->accepted(@args) : ();
}
