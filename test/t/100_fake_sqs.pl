# The servers that stand for SQS in other tests are themselves tested here: the
# fake by fakesqs/selftest.py (every rule once, every failure once), then what the
# Perl modules offer, and AWS's own client against the fake and against fauxqs.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use FakeSqs;
use Fauxqs;
use JSON::PP;
use Test::More;

if (my $why = FakeSqs->missing)
{
	plan skip_all => "NO TEST OF SQS RUNS: $why";
}

my $sqs = FakeSqs->start(tls => 1);

open(my $selftest, '-|', FakeSqs::python(), '-B', "$FakeSqs::test_dir/fakesqs/selftest.py", JSON::PP->new->encode($sqs->{ready}))
  or die "python: $!";
my $n = 0;
while (my $line = <$selftest>)
{
	if ($line =~ /^(not )?ok \d+ - (.*)/)
	{
		ok(!$1, $2);
		$n++;
	}
	elsif ($line =~ /^# (.*)/)
	{
		note($1);
	}
	elsif ($line =~ /^1\.\.(\d+)/)
	{
		is($n, $1, 'the self-test came to its end');
	}
}
ok(close($selftest), 'and found no error');

# The Perl module
my ($url, $dead) = $sqs->create_queue_with_dead_letters('orders.fifo', 2, VisibilityTimeout => 60);
like($dead, qr{/orders-dead\.fifo$}, 'a queue with dead letters');
my $body = "\x{1F600}\t\\\n";
$sqs->call('SendMessageBatch', QueueUrl => $url, Entries => [
	map { { Id => "e$_", MessageBody => "$body$_", MessageGroupId => 'g', MessageDeduplicationId => $_ > 2 ? '2' : "$_" } } 1 .. 3 ]);
is_deeply([ map { $_->{body} } $sqs->accepted('orders.fifo') ], [ map { "$body$_" } 1, 2 ], 'accepted, in order');
is_deeply([ $sqs->accepted('orders.fifo', 'dedup', 'trace', 'body') ],
	[ map { { dedup => $_, trace => undef, body => "$body$_" } } 1, 2 ], 'some fields');
is(length($sqs->copy('accepted', 'orders.fifo', 'dedup')), 4, 'in COPY format');
is_deeply([ map { $_->{dedup} } $sqs->duplicates('orders.fifo') ], ['2'], 'duplicates');
is($sqs->queue('orders.fifo')->{visible}, 2, 'state of a queue');
is(join('|', map { $_->{body} } $sqs->drain('orders.fifo')), "${body}1|${body}2", 'drained');
my $fault = $sqs->plant(do => 'error', code => 'RequestThrottled');
is($sqs->hits($fault), 0, 'a fault that hit nothing');
is(eval { $sqs->plant(do => 'nothing') }, undef, 'a mistake is an error');
like($@, qr/"do" must be/, 'which says what');
$sqs->clear($fault);
is(scalar($sqs->chaos(p => 0.5)) > 10, 1, 'chaos');
$sqs->clear;
is($sqs->requests(op => 'SendMessageBatch'), 0, 'calls of tests are not recorded');

# It ends with its standard input.
my $other = FakeSqs->start;
my $pid = $other->{pid};
is(kill(0, $pid), 1, 'a second one runs');
$other->stop;
is(kill(0, $pid), 0, 'and stops');

SKIP:
{
	my $why = Fauxqs->missing;
	if ($why)
	{
		diag("NO TEST WITH AWS'S OWN CLIENT OR FAUXQS RUNS: $why");
		skip $why, 6;
	}
	my $fauxqs = Fauxqs->start;
	for my $server ($sqs, $fauxqs)
	{
		like(Fauxqs::create_queue($server, 'js.fifo'), qr{/js\.fifo$}, ref($server) . ': AWS\'s client creates a queue');
		my $answer = Fauxqs::send_batch($server, 'js.fifo', map { {
			Id => "e$_", MessageBody => "$body$_", MessageGroupId => 'g', MessageDeduplicationId => "$_",
			MessageAttributes => { kind => { DataType => 'String', StringValue => 'test' } } } } 1, 2);
		is(join(' ', map { $_->{Id} } @{ $answer->{Successful} }), 'e1 e2', ref($server) . ': sends');
		is_deeply(
			[ map { [ $_->{group}, $_->{dedup}, $_->{body}, $_->{attributes} ] } Fauxqs::consume($server, 'js.fifo', messages => 2) ],
			[ map { [ 'g', "$_", "$body$_", { kind => 'test' } ] } 1, 2 ],
			ref($server) . ': and receives, in order');
	}
}

done_testing();
