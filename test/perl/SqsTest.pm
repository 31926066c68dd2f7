# What the tests of queues in SQS share: a server and a fake SQS that belong
# together, queues on both sides, and waiting for what is to happen there.

package SqsTest;

use strict;
use warnings FATAL => 'all';

use Exporter 'import';
use Carp;
use FakeSqs;
use PostgreSQL::Test::Utils;
use TaskoutboxTest;

our @EXPORT = qw(
  new_sqs_node
  aws_environment
  sqs_queue
  outbox_is_empty
  metrics
  problem_is
  log_of
);

# A fake SQS and a server whose environment has its credentials and region, but
# not its endpoint: that is in the urls.  Options: those of new_node and, in fake,
# of FakeSqs; environment => {} to replace what the server's has of AWS.
sub new_sqs_node
{
	my ($name, %opt) = @_;
	my $sqs = FakeSqs->start(
		log => "$PostgreSQL::Test::Utils::log_path/${name}_sqs.log",
		%{ delete $opt{fake} || {} });
	my %aws = $opt{environment} ? %{ delete $opt{environment} } : aws_environment($sqs);
	my %rest = map { $_ => $ENV{$_} } grep { !/^AWS_/ } keys %ENV;
	local %ENV = (%rest, %aws);

	return ($sqs, new_node($name, %opt));
}

# What a server has to be started with.
sub aws_environment
{
	my ($sqs) = @_;
	my %aws = $sqs->environment;
	delete $aws{AWS_ENDPOINT_URL_SQS};
	return %aws;
}

# A FIFO queue NAME.fifo with dead letters in SQS, and a queue NAME that publishes
# to it and retries soon.  Options: settings of create_queue; attributes => {} in SQS;
# plain => 1 for one without dead letters, receives: how many before it is one (3).
# Returns the url.
sub sqs_queue
{
	my ($dbh, $sqs, $name, %opt) = @_;
	my %attributes = %{ delete $opt{attributes} || {} };
	my $receives = delete $opt{receives} || 3;
	my $url = delete $opt{plain} ? $sqs->create_queue("$name.fifo", %attributes) :
	  ($sqs->create_queue_with_dead_letters("$name.fifo", $receives, %attributes))[0];
	my %settings = (backend => 'sqs', url => $url, retry_base => '20 ms', retry_cap => '200 ms', %opt);
	my @names = sort keys %settings;
	my $n = 1;

	value(
		$dbh,
		'SELECT taskoutbox.create_queue($1, ' . join(', ', map { $n++; "$_ => \$$n" } @names) . ')',
		$name,
		@settings{@names});
	return $url;
}

# All tasks of a queue are published, or dead.
sub outbox_is_empty
{
	my ($dbh, $queue, $seconds) = @_;
	return poll(
		sub { value($dbh, 'SELECT count(*) FROM taskoutbox.task_outbox WHERE queue = $1', $queue) == 0 },
		$seconds);
}

sub metrics
{
	my ($dbh, $queue) = @_;
	my ($row) = rows($dbh, 'SELECT * FROM taskoutbox.queue_metrics WHERE queue = $1', $queue);
	return $row;
}

# Waits until queue_metrics says that this (a pattern; undef: nothing) keeps a queue from
# delivering, and returns its row, or nothing.
sub problem_is
{
	my ($dbh, $queue, $pattern) = @_;
	my $row;

	poll(
		sub {
			$row = metrics($dbh, $queue);
			return defined $pattern ? defined $row->{problem} && $row->{problem} =~ $pattern : !defined $row->{problem};
		}, 30) or return;
	return $row;
}

# What the server has logged since an offset in its log.
sub log_of
{
	my ($node, $offset) = @_;
	return substr(slurp_file($node->logfile), $offset || 0);
}

1;
