# One semantics for all backends: order, message groups, visibility timeouts, receipt
# handles, receive counts, dead letters, redrive and deduplication, written once and
# run against the embedded queue, the fake SQS, and fauxqs, an emulator that others
# wrote. Where one of them is known to differ, that is said in %differs, and the test
# is that it still does.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FakeSqs;
use Fauxqs;
use POSIX ();
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Semantics;
use SqsTest;
use TaskoutboxTest;
use Test::More;
use Time::HiRes ();

# What is not as with the others: by backend, what is tested, and what is the case instead.
my %differs = (
	embedded => {
		# The row is gone, and nobody remembers the handle; a script that ignores that would commit its work twice.
		'delete of what is deleted' => 'refused',
	},
	fauxqs => {
		# It deletes by a handle whose visibility timeout has ended; AWS refuses that on a FIFO queue.
		'delete after the visibility timeout' => 'done',
		'comes again after a delete that was too late' => undef,
		# It says that it has done so, and does not; AWS refuses that, too.
		'delete by the handle of an earlier receive' => 'done',
		# It gives out one message of a group per receive; AWS and we up to 10.
		'most of one group in a receive' => 1,
		# It has no StartMessageMoveTask.
		'redrive' => undef,
	});

plan skip_all => FakeSqs::missing() if FakeSqs::missing();

my ($sqs, $node) = new_sqs_node('semantics', fake => { verify => 0 });
my $dbh = session($node);
my ($backend, $at);
$dbh->do('CREATE TABLE done (seq serial, queue text, n int, receive_count int)');
$dbh->do(q(CREATE FUNCTION one(m taskoutbox.message) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
	IF m.receive_count = 1 AND (m.payload ->> 'n')::int = 3 THEN RAISE EXCEPTION 'not the first time'; END IF;
	INSERT INTO done (queue, n, receive_count) VALUES (m.queue, (m.payload ->> 'n')::int, m.receive_count); END $$));

# is(), unless this backend is known to differ in that.
sub same
{
	my ($got, $expected, $what) = @_;
	my $known = $differs{$backend};
	my $different = exists $known->{$what};
	return is($got, $different ? $known->{$what} : $expected, "$backend: $what" . ($different ? ' (known to differ)' : ''));
}

my $n = 0;
sub queue
{
	my (%opt) = @_;
	my @args = ($dbh, name => $backend . ++$n, visibility_timeout => 30, receives => 1000, %opt);
	return $at ? Semantics::Sqs->new(@args, at => $at) : Semantics::Embedded->new(@args);
}

sub numbers
{
	return join(' ', map { $_->{n} } @_);
}

sub suite
{
	my $q = queue();
	my ($m, @m, $old);

	# Order
	$q->put(n => $_, group => $_ % 2 ? 'odd' : 'even') for 1 .. 12;
	@m = $q->drain;
	same(numbers(grep { $_->{n} % 2 } @m), '1 3 5 7 9 11', 'order of a group');
	same(numbers(grep { $_->{n} % 2 == 0 } @m), '2 4 6 8 10 12', 'order of another one');
	same(join(' ', map { $_->{receive_count} } @m), '1 ' x 11 . '1', 'first receives');

	# Several of a group in one receive: after receives that asked for many, all give as many as they will.
	my $most = 0;
	for my $round (1 .. 5)
	{
		$q->put(n => $_, group => "together$round") for 1 .. 3;
		@m = $q->receive(max => 3, wait => 1);
		same(numbers(@m), join(' ', 1 .. @m), 'those of one receive are in order');
		$most = @m if @m > $most;
		$q->delete($_->{handle}) for @m;
		$q->drain;
	}
	same($most, 3, 'most of one group in a receive');

	# The lock of a group
	$q->put(n => 1, group => 'a');
	$m = $q->next_one;
	$q->put(n => 2, group => 'a');
	$q->put(n => 3, group => 'b');
	@m = $q->receive(max => 10, wait => 1);
	same(numbers(@m), '3', 'while one of a group is in flight only others come');
	same($q->delete($_->{handle}), 'done', 'delete') for $m, @m;
	same(numbers($q->drain), '2', 'then the next one of the group');
	same($q->delete($m->{handle}), 'done', 'delete of what is deleted');

	# Those without a group do not wait for each other.
	$q->put(n => $_) for 1 .. 3;
	@m = map { $q->next_one } 1 .. 3;
	same(join(' ', sort map { $_->{n} } @m), '1 2 3', 'without a group: all at once');
	$q->delete($_->{handle}) for @m;

	# A receive that waits
	my $waiting = fork // die $!;
	if ($waiting == 0)
	{
		# a session and a connection of its own, and no END blocks of the test
		my $other = session($node);
		Time::HiRes::sleep(.5);
		value($other, q(SELECT id FROM taskoutbox.enqueue('test', '{"n": 1}', queue => $1)), $q->{name});
		POSIX::_exit(0);
	}
	my $start = mono();
	@m = $q->receive(max => 1, wait => 10);
	waitpid $waiting, 0;
	same(numbers(@m), '1', 'a receive that waits gets what comes');
	cmp_ok(mono() - $start, '<', 5, "$backend: at once");
	$q->delete($m[0]{handle});

	# Visibility timeouts
	$q = queue(visibility_timeout => 1);
	$q->put(n => $_, group => 'g') for 1 .. 2;
	$old = $q->next_one;
	$m = $q->next_one;
	same("$m->{n} $m->{receive_count}", '1 2', 'what is not deleted comes again after its visibility timeout, and first');
	same($m->{uid}, $old->{uid}, 'it is the same task');
	same($q->delete($old->{handle}), 'refused', 'delete by the handle of an earlier receive');
	same($q->hide($m->{handle}, 30), 'done', 'more time');
	@m = $q->receive(max => 1, wait => 2);
	same(scalar(@m), 0, 'and nobody gets it after its visibility timeout');
	same($q->hide($m->{handle}, 0), 'done', 'no more time');
	$m = $q->next_one;
	same("$m->{n} $m->{receive_count}", '1 3', 'and it comes at once');
	same($q->delete($m->{handle}), 'done', 'delete by the handle of the last receive');
	$m = $q->next_one;
	same($m->{n}, 2, 'then the next one');
	$q->hide($m->{handle}, 1);
	Time::HiRes::sleep(1.3);
	same($q->delete($m->{handle}), 'refused', 'delete after the visibility timeout');
	@m = $q->receive(max => 1, wait => 1);
	same(@m ? $m[0]{n} : undef, 2, 'comes again after a delete that was too late');
	$q->delete($_->{handle}) for @m;

	# Dead letters
	$q = queue(visibility_timeout => 30, receives => 2);
	$q->put(n => $_, group => 'g') for 1 .. 3;
	for my $count (1, 2)
	{
		$m = $q->next_one;
		same("$m->{n} $m->{receive_count}", "1 $count", "receive $count");
		same($q->hide($m->{handle}, 0), 'done', 'given back');
	}
	$old = $m;
	$m = $q->next_one;
	same("$m->{n} $m->{receive_count}", '2 1', 'after the last receive its group goes on');
	same(join(' ', $q->dead), '1', 'and it is a dead letter');
	$q->delete($m->{handle});

	# Redrive
	$q->redrive;
	my %got;
	poll(sub { $got{ $_->{n} } = $_ for $q->drain; return keys %got == 2 }, exists $differs{$backend}{redrive} ? 2 : 20);
	same($got{1} && $got{1}{uid}, $old->{uid}, 'redrive');
	same($got{3}{n}, 3, 'and what waits comes, too');

	# Deduplication
	$m = $q->put(n => 1, group => 'a', deduplication_id => 'once');
	same($m->{duplicate}, 0, 'the first one of an id');
	my $first = $m->{id};
	$m = $q->put(n => 2, group => 'a', deduplication_id => 'once');
	same("$m->{id} $m->{duplicate}", "$first 1", 'the second one is a duplicate of it');
	$m = $q->put(n => 3, group => 'b', deduplication_id => 'once');
	same($m->{duplicate}, 1, 'in another group, too');
	same(numbers($q->drain), '1', 'one task comes of it');
	$m = $q->put(n => 4, group => 'a', deduplication_id => 'once');
	same($m->{duplicate}, 1, 'a duplicate also when the first one is done');
	same(numbers($q->drain), '', 'and nothing comes of it');

	# Controllers; one of them fails the first time.
	$q = queue();
	value($dbh, q(SELECT taskoutbox.register_controller('test', 'one(taskoutbox.message)', queue => $1)), $q->{name});
	$q->put(n => $_, group => $_ % 2 ? 'odd' : 'even') for 1 .. 12;
	ok(poll(sub { value($dbh, 'SELECT count(*) = 12 FROM done WHERE queue = $1', $q->{name}) }, 30), "$backend: controllers are called");
	my @done = rows($dbh, 'SELECT n, receive_count FROM done WHERE queue = $1 ORDER BY seq', $q->{name});
	same(numbers(grep { $_->{n} % 2 } @done), '1 3 5 7 9 11', 'controllers in the order of a group');
	same(numbers(grep { $_->{n} % 2 == 0 } @done), '2 4 6 8 10 12', 'controllers in the order of another one');
	same((map { $_->{receive_count} } grep { $_->{n} == 3 } @done)[0], 2, 'one that failed is called again, and before what follows it');
	same(scalar(@done), 12, 'each once');
	$dbh->do(q(SELECT taskoutbox.unregister_controller('test', $1)), undef, $q->{name});
	return;
}

($backend, $at) = ('embedded', undef);
suite();
($backend, $at) = ('sqs', $sqs);
suite();
SKIP:
{
	if (my $why = Fauxqs->missing)
	{
		diag("ONE SEMANTICS IS NOT TESTED AGAINST FAUXQS: $why");
		skip $why, 1;
	}
	($backend, $at) = ('fauxqs', Fauxqs->start);
	suite();
}

done_testing();
