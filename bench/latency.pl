# Measure 9: from the return of the producer's commit to the message in the consumer's hand.
# Producer and consumer are two processes of this host, with one clock (CLOCK_MONOTONIC).

package Bench::Latency;

use strict;
use warnings FATAL => 'all';

use Bench;
use IO::Select;
use POSIX ();
use Time::HiRes qw(usleep);

my $rate = 50;

# Each returns the numbers of messages that came, when at least one has.
sub wait_for_task
{
	my ($dbh) = @_;
	my $receive = $dbh->prepare_cached(q(SELECT payload ->> 'n', receipt_handle FROM taskoutbox.receive(max_messages => 10, wait => '20 s')));
	my @got = @{ $dbh->selectall_arrayref($receive) };
	my $now = mono();
	$dbh->do('SELECT taskoutbox.delete($1::text[])', undef, [ map { $_->[1] } @got ]) if @got;
	return map { [ $_->[0], $now ] } @got;
}

my $listening;

# It has the row in its hand before its transaction ends: nothing is faster with a table.
sub wait_for_notification
{
	my ($dbh) = @_;
	my $receive = $dbh->prepare_cached(q(DELETE FROM message WHERE id = ANY (ARRAY(SELECT id FROM message
			WHERE visible_at <= clock_timestamp() ORDER BY id LIMIT 10 FOR UPDATE SKIP LOCKED))
		RETURNING payload ->> 'n'));
	$listening //= $dbh->do('LISTEN message');
	IO::Select->new($dbh->{pg_socket})->can_read(20) unless $dbh->pg_notifies;
	1 while $dbh->pg_notifies;
	$dbh->begin_work;
	my @got = @{ $dbh->selectall_arrayref($receive) };
	my $now = mono();
	$dbh->commit;
	return map { [ $_->[0], $now ] } @got;
}

# A consumer in a process of its own, that prints what came and when; the first one that
# comes warms up.
sub start_consumer
{
	my ($wait) = @_;
	my $pid = open(my $out, '-|') // die "fork: $!";
	return ($pid, $out) if $pid;

	$SIG{TERM} = 'DEFAULT';
	$| = 1;
	eval {
		my $dbh = session();
		$wait->($dbh);
		print "ready\n";
		for (;;)
		{
			printf "%d %.6f\n", @$_ for $wait->($dbh);
		}
	};
	print STDERR $@;
	POSIX::_exit(1);
}

my %side = (
	ours => [ sub { start_consumer(\&wait_for_task) },
		q(SELECT taskoutbox.enqueue('bench', jsonb_build_object('n', $1::int, 'pad', $2::text))) ],
	notify => [ sub { start_consumer(\&wait_for_notification) },
		q(WITH m AS (INSERT INTO message (visible_at, receive_count, payload)
			VALUES (clock_timestamp(), 0, jsonb_build_object('n', $1::int, 'pad', $2::text))) SELECT pg_notify('message', '')) ],
	'graphile-worker' => [ sub { start_node('graphile-worker', 'listen') },
		q(SELECT graphile_worker.add_job('bench', json_build_object('n', $1::int, 'pad', $2::text))) ],
	'pg-boss' => [ sub { start_node('pg-boss', 'listen') }, undef ]);

sub latency
{
	my ($name) = @_;
	my ($start, $sql) = @{ $side{$name} };
	$sql //= join("\n", peer_lines('pg-boss', 'insert')) =~ s/:payload/json_build_object('n', \$1::int, 'pad', \$2::text)/r;
	my $n = $rate * full(10, 2);
	my $dbh = session();
	my $enqueue = $dbh->prepare($sql);
	my ($pid, $out) = $start->();
	my (%sent, @took);

	# Until the consumer says that it is ready.
	do { $enqueue->execute(0, 'x' x 160); $enqueue->finish } until IO::Select->new($out)->can_read(.1);
	(<$out> // '') =~ /ready/ or die "the consumer of $name did not start";

	my $next = mono();
	for my $i (1 .. $n)
	{
		$next += 1 / $rate;
		my $sleep = $next - mono();
		usleep(1e6 * $sleep) if $sleep > 0;
		$enqueue->execute($i, 'x' x 160);
		$sent{$i} = mono();
		$enqueue->finish;
	}
	my $take = sub {
		my ($i, $at) = split ' ', $_[0];
		push @took, ($at - delete $sent{$i}) * 1000 if $sent{$i};
	};
	while (keys %sent && IO::Select->new($out)->can_read(5))
	{
		$take->(<$out> // last);
	}
	kill 'TERM', $pid;
	# What came in one piece with another line is in Perl's buffer.
	while (my $line = <$out>) { $take->($line) }
	close $out;
	$dbh->disconnect;
	die "$name: $n sent, " . @took . " received\n" if @took < .99 * $n;
	save('latency', $name, map { sprintf('%.4f', quantile($_ / 1000, @took)) } 10, 100, 250, 500, 750, 900, 950, 990, 999);
	return { p50 => quantile(.5, @took), p99 => quantile(.99, @took) };
}

measure('9', 'latency', sub {
	forget_tasks();
	run_sql('CREATE TABLE IF NOT EXISTS message (id bigserial PRIMARY KEY, visible_at timestamptz, receive_count int, payload jsonb)');
	run_sql('CREATE INDEX IF NOT EXISTS message_visible_at_idx ON message (visible_at)');
	run_sql('TRUNCATE message');
	my @peers = ('graphile-worker', 'pg-boss');
	my $got = alternate('latency', [ notify => sub { latency('notify') } ], [ ours => sub { latency('ours') } ],
		map { my $name = $_; [ $name => sub { latency($name) }, $name ] } @peers);
	compare('9', 'commit to received, 50/s: p50 to that of table + NOTIFY + LISTEN', $got, 'ours p50', 'notify p50', '<= 0.5');
	compare('9', 'commit to received, 50/s: p99', $got, 'ours p99', 'notify p99', '<= 0.6');
	for my $q ('p50', 'p99')
	{
		row('9', "  $_: $q, ms", undef, @{ $got->{"$_ $q"} }) for grep { $got->{"$_ $q"} } 'ours', 'notify', @peers;
	}
});

1;
