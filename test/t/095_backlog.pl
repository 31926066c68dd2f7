# Much is waiting: the relay keeps its bound of memory, tasks of other groups are
# delivered all the same, and the views answer at once.
#
#   BACKLOG_ROWS   rows of each shape (default 40000; 5000000 takes some minutes)

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use TaskoutboxTest;
use Test::More;

my $rows = $ENV{BACKLOG_ROWS} || 40_000;
my $large = $rows > 1_000_000;
# So small that the rows do not fit.
my $memory = $large ? 16 * 1024 : 512;
my $node = new_node('backlog', conf => qq(
synchronous_commit = off
fsync = off
autovacuum = off
max_wal_size = '8GB'
shared_buffers = '512MB'
taskoutbox.relay_memory = '${memory}kB'
));
my $dbh = session($node);

sub rss
{
	my $pid = value($dbh, q(SELECT pid FROM taskoutbox.relay_status WHERE database = 'postgres'));
	open my $fh, '<', "/proc/$pid/status" or die $!;
	my ($kb) = map { /^RssAnon:\s+(\d+)/ ? $1 : () } <$fh>;
	return $kb;
}

# Until the relay knows all that is committed; returns the rows that it counts.
sub known
{
	return value($dbh, q(SELECT waiting + delayed + in_flight FROM taskoutbox.queue_metrics WHERE queue = 'default'));
}

my $base = rss();
my %shape = (
	'ungrouped' => 'NULL',
	'1,000 groups' => q('g' || n % 1000),
	'a million groups' => q('m' || n % 1000000),
	'delayed' => 'NULL');

for my $shape ('ungrouped', '1,000 groups', 'a million groups', 'delayed')
{
	my $deliver_at = $shape eq 'delayed' ? q('tomorrow') : 'NULL';
	$dbh->do(qq(SELECT count(taskoutbox.enqueue('backlog', '{"a": 1}', group_id => $shape{$shape}, deliver_at => $deliver_at))
		FROM generate_series(1, $rows) n));
	ok(poll(sub { known() == $rows }, 300), "$shape: all are known") or diag(known());

	# Somebody holds the heads of many groups, and works for long.
	if ($shape eq '1,000 groups')
	{
		ok(poll(sub {
			receive($dbh, max => 1000, vt => '1 hour', wait => '100 ms');
			return value($dbh, 'SELECT count(DISTINCT group_id) FROM taskoutbox.in_flight') == 1000;
		}, 120), "$shape: every group has something in flight");
	}

	# A task of another group, in the same queue and in another one
	if ($shape =~ /1,000|delayed/)
	{
		my $start = mono();
		value($dbh, q(SELECT count(taskoutbox.enqueue('new', group_id => 'new-' || n)) FROM generate_series(1, 10) n));
		my @new;
		poll(sub { @new = grep { $_->{task_type} eq 'new' } receive($dbh, max => 10, wait => '1 s') }, 20);
		my $took = mono() - $start;
		cmp_ok(scalar(@new), '>', 0, "$shape: new tasks of other groups are delivered");
		note("$shape: after $took s");
		value($dbh, 'SELECT taskoutbox.delete(array_agg(receipt_handle)) FROM unnest($1::text[]) receipt_handle', [ map { $_->{receipt_handle} } @new ]);
	}

	my $rss = rss();
	my $bytes = value($dbh, q(SELECT memory_bytes FROM taskoutbox.relay_status WHERE database = 'postgres'));
	note("$shape: RssAnon $rss kB, before anything $base kB; the relay says $bytes bytes");
	# What is on offer or in flight comes on top of it.
	cmp_ok($bytes, '<=', $memory * 1024 + 128 * 1024, "$shape: what waits takes no more than relay_memory");
	cmp_ok($rss - $base, '<', 1.5 * $memory + 4096, "$shape: nor does the process grow by much more");

	for my $view (qw(queue_metrics in_flight blocked_groups relay_status))
	{
		value($dbh, "SELECT count(*) FROM taskoutbox.$view");
		my @took = sort { $a <=> $b } map { my $s = mono(); value($dbh, "SELECT count(*) FROM (SELECT * FROM taskoutbox.$view OFFSET 0) v"); mono() - $s } 1 .. 5;
		note(sprintf('%s: %s takes %.1f ms', $shape, $view, $took[2] * 1000));
		cmp_ok($took[2], '<', $large ? .05 : .5, "$shape: $view answers at once");
	}

	# Oldest first: what can be received comes in the order of ids.
	if ($shape eq 'ungrouped')
	{
		my @ids = map { map { $_->{id} } receive($dbh, max => 1000, wait => '5 s') } 1 .. 3;
		is("@ids[0 .. 9]", '1 2 3 4 5 6 7 8 9 10', "$shape: the oldest ones first");
	}
	$dbh->do('TRUNCATE taskoutbox.task_outbox');
	$dbh->do('VACUUM taskoutbox.task_outbox');
	ok(poll(sub { (known() // -1) == 0 }, 60), "$shape: all gone");
}

done_testing();
