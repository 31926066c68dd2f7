# Queues of one taskoutbox, whatever stands behind them, to be used in one way: tasks
# are enqueued and published by taskoutbox, and received from where they are.
#
#   my $queue = Semantics::Embedded->new($dbh, name => 'a', visibility_timeout => 1, receives => 2);
#   my $queue = Semantics::Sqs->new($dbh, at => $fake_or_fauxqs, name => 'a', ...);
#   $queue->put(group => 'g', n => 1);
#   my @messages = $queue->receive(max => 10, wait => 1);     # {n, group, uid, receive_count, handle}
#   $queue->delete($handle);              # 'done', or 'refused'
#   $queue->hide($handle, $seconds);      # the same

package Semantics;

use strict;
use warnings FATAL => 'all';

use TaskoutboxTest qw(poll rows state_of value);

# Enqueues a task, and waits until it can be received. Options: n, group, deduplication_id. Returns what enqueue did.
sub put
{
	my ($self, %task) = @_;
	my ($row) = rows(
		$self->{dbh}, q(SELECT id, duplicate FROM taskoutbox.enqueue('test', jsonb_build_object('n', $1::int), group_id => $2,
			deduplication_id => $3, queue => $4)), $task{n}, $task{group}, $task{deduplication_id}, $self->{name});
	$self->settle;
	return $row;
}

sub redrive
{
	my ($self) = @_;
	value($self->{dbh}, 'SELECT taskoutbox.redrive($1)', $self->{name});
	return;
}

# Receives until something comes.
sub next_one
{
	my ($self) = @_;
	my @messages;
	poll(sub { @messages = $self->receive(max => 1, wait => 1) }, 20);
	return $messages[0];
}

# Receives and deletes until nothing comes any more; returns the messages.
sub drain
{
	my ($self) = @_;
	my @got;
	while (my @messages = $self->receive(max => 10))
	{
		$self->delete($_->{handle}) for @messages;
		push @got, @messages;
	}
	return @got;
}

package Semantics::Embedded;

use strict;
use warnings FATAL => 'all';

use TaskoutboxTest qw(poll rows state_of value);

our @ISA = ('Semantics');

sub new
{
	my ($class, $dbh, %opt) = @_;
	$dbh->do(sprintf(q(SELECT taskoutbox.create_queue('%s', visibility_timeout => '%s s', max_receive_count => %d, retry_base => '20 ms')),
		$opt{name}, $opt{visibility_timeout}, $opt{receives}));
	return bless { dbh => $dbh, %opt }, $class;
}

sub settle
{
	return;
}

sub receive
{
	my ($self, %opt) = @_;
	return map { {
			n => $_->{payload} =~ /(\d+)/ ? $1 : undef,
			group => $_->{group_id}, uid => $_->{uid}, receive_count => $_->{receive_count}, handle => $_->{receipt_handle} } }
	  TaskoutboxTest::receive($self->{dbh}, queue => $self->{name}, max => $opt{max}, wait => ($opt{wait} || 0) . ' s');
}

sub delete    ## no critic (ProhibitBuiltinHomonyms)
{
	my ($self, $handle) = @_;
	return { '00000' => 'done', 'TO012' => 'refused' }->{ state_of($self->{dbh}, 'SELECT taskoutbox.delete($1)', $handle) };
}

sub hide
{
	my ($self, $handle, $seconds) = @_;
	return { '00000' => 'done', 'TO012' => 'refused' }->{
		state_of($self->{dbh}, 'SELECT taskoutbox.change_visibility($1, make_interval(secs => $2))', $handle, $seconds) };
}

sub dead
{
	my ($self) = @_;
	return map { $_->{n} } rows($self->{dbh}, q(SELECT payload ->> 'n' AS n FROM taskoutbox.dead_letter WHERE queue = $1 ORDER BY died_at), $self->{name});
}

package Semantics::Sqs;

use strict;
use warnings FATAL => 'all';

use Carp;
use HTTP::Tiny;
use JSON::PP;
use TaskoutboxTest qw(poll rows state_of value);

our @ISA = ('Semantics');

my $json = JSON::PP->new->utf8;

# An operation in SQS's JSON protocol, not signed. Returns its answer, or the code of its error.
sub call
{
	my ($self, $op, %request) = @_;
	my $http = $self->{http} ||= HTTP::Tiny->new(timeout => 60, proxy => undef, http_proxy => undef);
	my $r = $http->post($self->{at}->endpoint . '/', {
			headers => { 'content-type' => 'application/x-amz-json-1.0', 'x-amz-target' => "AmazonSQS.$op" },
			content => $json->encode(\%request) });
	my $answer = eval { $json->decode($r->{content}) } || {};
	return $r->{success} ? $answer : $answer->{__type} || $r->{status};
}

sub new
{
	my ($class, $dbh, %opt) = @_;
	my $self = bless { dbh => $dbh, %opt }, $class;
	$self->{dead_url} = $self->call('CreateQueue', QueueName => "$opt{name}-dead.fifo", Attributes => { FifoQueue => 'true' })->{QueueUrl};
	my $arn = $self->call('GetQueueAttributes', QueueUrl => $self->{dead_url}, AttributeNames => ['QueueArn'])->{Attributes}{QueueArn};
	$self->{url} = $self->call('CreateQueue', QueueName => "$opt{name}.fifo", Attributes => {
			FifoQueue => 'true', VisibilityTimeout => "$opt{visibility_timeout}",
			RedrivePolicy => $json->encode({ deadLetterTargetArn => $arn, maxReceiveCount => $opt{receives} }) })->{QueueUrl};
	# its urls may have a host of their own
	value($dbh, q(SELECT taskoutbox.create_queue($1, backend => 'sqs', url => $2, endpoint => $3, allow_http => true, retry_base => '20 ms', retry_cap => '200 ms')),
		$opt{name}, $self->{url}, $opt{at}->endpoint);
	return $self;
}

sub settle
{
	my ($self) = @_;
	poll(sub { value($self->{dbh}, 'SELECT count(*) = 0 FROM taskoutbox.task_outbox WHERE queue = $1', $self->{name}) })
	  or croak 'not published';
	return;
}

sub _receive
{
	my ($self, $url, %opt) = @_;
	my $answer = $self->call('ReceiveMessage', QueueUrl => $url, MaxNumberOfMessages => $opt{max}, WaitTimeSeconds => $opt{wait} || 0,
		MessageSystemAttributeNames => ['All'], AttributeNames => ['All'], MessageAttributeNames => ['All']);
	return map { {
			n => $_->{Body} =~ /(\d+)/ ? $1 : undef,
			group => $_->{Attributes}{MessageGroupId}, uid => $_->{MessageAttributes}{task_uid}{StringValue},
			receive_count => $_->{Attributes}{ApproximateReceiveCount}, handle => $_->{ReceiptHandle} } } @{ $answer->{Messages} || [] };
}

sub receive
{
	my ($self, %opt) = @_;
	return $self->_receive($self->{url}, %opt);
}

sub delete    ## no critic (ProhibitBuiltinHomonyms)
{
	my ($self, $handle) = @_;
	return ref $self->call('DeleteMessage', QueueUrl => $self->{url}, ReceiptHandle => $handle) ? 'done' : 'refused';
}

sub hide
{
	my ($self, $handle, $seconds) = @_;
	return ref $self->call('ChangeMessageVisibility', QueueUrl => $self->{url}, ReceiptHandle => $handle, VisibilityTimeout => $seconds) ?
	  'done' : 'refused';
}

# Receives them, and puts them back.
sub dead
{
	my ($self) = @_;
	my @messages = $self->_receive($self->{dead_url}, max => 10);
	$self->call('ChangeMessageVisibility', QueueUrl => $self->{dead_url}, ReceiptHandle => $_->{handle}, VisibilityTimeout => 0) for @messages;
	return map { $_->{n} } @messages;
}

1;
