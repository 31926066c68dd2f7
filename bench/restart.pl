# Measures 13 and 14: what is pending when the relay starts, and what it holds in memory.

package Bench::Restart;

use strict;
use warnings FATAL => 'all';

use Bench;

# From the start of the relay's process to the first message, after a restart of the server.
# (Which ends the receive: it is not counted.)
sub first_delivery
{
	run_sql('CHECKPOINT');
	restart_server();
	return value(q(SELECT extract(epoch FROM clock_timestamp() - (SELECT backend_start FROM pg_stat_activity
			WHERE backend_type = 'taskoutbox relay'))
		FROM taskoutbox.receive(visibility_timeout => '1 hour', wait => '20 s')));
}

# From the start of its process until the relay knows all, and the query in between to compare.
sub rebuild
{
	my ($n) = @_;
	my $old = relay();
	value('SELECT pg_terminate_backend($1)', $old);
	my $took = poll(sub {
		my ($pid, $waiting, $took) = dbh()->selectrow_array(q(SELECT a.pid, m.waiting + m.in_flight,
				extract(epoch FROM clock_timestamp() - a.backend_start)
			FROM pg_stat_activity a, taskoutbox.queue_metrics m
			WHERE a.backend_type = 'taskoutbox relay' AND m.queue = 'default' AND m.relay_running));
		return defined $pid && $pid != $old && $waiting == $n ? $took : 0;
	}, 120, .002);
	return $took;
}

sub select_all
{
	# Without the way to a client.
	my ($ms) = map { $_->[0] =~ /Execution Time: ([\d.]+)/ ? $1 : () } @{ dbh()->selectall_arrayref(
		'EXPLAIN (ANALYZE, TIMING off) SELECT id, queue, group_id FROM taskoutbox.task_outbox ORDER BY id') };
	return $ms / 1000;
}

sub restarts
{
	my ($what, $n) = @_;
	my $got = alternate($what,
		[ select => sub { select_all() } ],
		[ rebuild => sub { rebuild($n) } ],
		[ first => sub { first_delivery() } ]);
	row('13', "$what: first delivery after the relay's start, s", '<= 0.1', @{ $got->{first} });
	compare('13', '  rebuild to SELECT id, queue, group_id ORDER BY id', $got, 'rebuild', 'select', '<= 1.5');
	row('13', '  rebuild, s', undef, @{ $got->{rebuild} });
	return;
}

sub many { return sprintf('%.3gM', $_[0] / 1e6) }

measure('13', 'restart', sub {
	my $n = full(1_000_000, 100_000);

	forget_tasks();
	enqueue_many($n, 1000);
	run_sql('VACUUM ANALYZE taskoutbox.task_outbox');
	restarts(many($n) . ' pending', $n);

	# A prepared transaction keeps vacuum from removing rows as an open one does, and survives a restart.
	forget_tasks();
	run_sql('BEGIN');
	value('SELECT pg_current_xact_id()');
	run_sql(q(PREPARE TRANSACTION 'holder'));
	for (1 .. 5)
	{
		enqueue_many($n, 1000);
		value(q(SELECT taskoutbox.purge('default')));
		poll(sub { known() == 0 });
	}
	enqueue_many($n, 1000);
	run_sql('VACUUM ANALYZE taskoutbox.task_outbox');
	restarts(many($n) . ' pending, ' . many(5 * $n) . ' dead', $n);
	run_sql(q(ROLLBACK PREPARED 'holder'));
	forget_tasks();
});

sub rss_mb
{
	my $pid = relay();
	open(my $fh, '<', "/proc/$pid/status") or die "status of the relay: $!";
	my ($kb) = map { /^RssAnon:\s+(\d+)/ ? $1 : () } <$fh>;
	return $kb / 1024;
}

measure('14', 'memory', sub {
	my $n = full(5_000_000, 200_000);
	forget_tasks();
	row('14', '  RssAnon of the relay with nothing pending, MB', undef, rss_mb());
	for my $shape ([ 'no group', 0, 16 ], [ '1,000 groups', 1000, 24 ], [ $n >= 1e6 ? '1M groups' : "$n groups", full(1_000_000, $n), 64 ])
	{
		my ($name, $groups, $target) = @$shape;
		enqueue_many($n, $groups);
		row('14', 'RssAnon of the relay, ' . many($n) . " pending, $name, MB", "<= $target", rss_mb());
		forget_tasks();
	}
});

1;
