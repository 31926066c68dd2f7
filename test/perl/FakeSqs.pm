# Starts test/fake_sqs.py for a test, steers it, and tells what it got.
#
#   my $sqs = FakeSqs->start(log => "$tmp/sqs.log");
#   my $url = $sqs->create_queue('orders.fifo', VisibilityTimeout => 5);
#   $sqs->plant(do => 'error', code => 'RequestThrottled', times => 3);
#   is_deeply([ map { $_->{body} } $sqs->accepted('orders.fifo') ], ...);
#
# What can be planted is in test/fakesqs/faults.py, all commands are in class
# Control of test/fake_sqs.py.  The server ends with this process.

package FakeSqs;

use strict;
use warnings FATAL => 'all';

use Carp;
use Cwd ();
use File::Basename ();
use HTTP::Tiny;
use IPC::Open2;
use JSON::PP;

our $test_dir = Cwd::abs_path(File::Basename::dirname(__FILE__) . '/..');
my $json = JSON::PP->new->utf8;
my $text = JSON::PP->new;

# Why it cannot run here, or nothing.
sub missing
{
	my $python = python();
	return system("$python -c 'import botocore' 2>/dev/null") == 0
	  ? undef
	  : "$python has no botocore (Debian: python3-botocore)";
}

# Debian's packages are for Debian's Python, which need not be the first in PATH.
sub python
{
	return $ENV{PYTHON} || (-x '/usr/bin/python3' ? '/usr/bin/python3' : 'python3');
}

# Runs a server that prints a line of JSON when it is ready, and ends when its
# standard input does.  Returns an object with what it printed.
sub spawn
{
	my ($class, @command) = @_;
	my $self = bless { owner => $$ }, $class;

	$self->{pid} = open2($self->{from}, $self->{to}, @command);
	my $line = readline($self->{from});
	croak "not started: @command" unless defined $line;
	$self->{ready} = $json->decode($line);
	return $self;
}

# Options: log => file, tls => 1 or [names for the certificate], verify => 0,
# port, region, account.
sub start
{
	my ($class, %opt) = @_;
	my @args;

	push @args, '--log', $opt{log} if defined $opt{log};
	push @args, '--port', $opt{port} if defined $opt{port};
	push @args, '--region', $opt{region} if defined $opt{region};
	push @args, '--account', $opt{account} if defined $opt{account};
	push @args, '--no-verify' if defined $opt{verify} && !$opt{verify};
	push @args, '--tls', ref $opt{tls} ? @{ $opt{tls} } : () if $opt{tls};

	my $self = $class->spawn(python(), "$test_dir/fake_sqs.py", @args);
	# No proxy, whatever the environment says.
	$self->{http} = HTTP::Tiny->new(timeout => 60, proxy => undef, http_proxy => undef);
	return $self;
}

sub stop
{
	my ($self) = @_;
	return unless $self->{pid} && $self->{owner} == $$;
	local $?;
	close($self->{to});
	waitpid(delete $self->{pid}, 0);
	return;
}

sub DESTROY
{
	my ($self) = @_;
	return $self->stop;
}

sub port { return $_[0]->{ready}{http} }
sub endpoint { return "http://127.0.0.1:$_[0]->{ready}{http}" }
sub https_endpoint { return "https://localhost:$_[0]->{ready}{https}" }
sub ca_file { return $_[0]->{ready}{ca_file} }
sub region { return $_[0]->{ready}{region} }
sub access_key { return $_[0]->{ready}{access_key} }
sub secret_key { return $_[0]->{ready}{secret_key} }

# What AWS's clients read, with credentials that are accepted.
sub environment
{
	my ($self) = @_;
	return (
		AWS_REGION => $self->region,
		AWS_ACCESS_KEY_ID => $self->access_key,
		AWS_SECRET_ACCESS_KEY => $self->secret_key,
		AWS_ENDPOINT_URL_SQS => $self->endpoint);
}

sub _post
{
	my ($self, $command, $args) = @_;
	my $r = $self->{http}->post($self->endpoint . "/_control/$command", { content => $json->encode($args) });
	croak "$command: ", $r->{status} == 400 ? $json->decode($r->{content})->{error} : "$r->{status} $r->{content}"
	  unless $r->{success};
	return $r->{content};
}

# Any command.  Returns its answer.
sub control
{
	my ($self, $command, %args) = @_;
	return $json->decode($self->_post($command, \%args));
}

# Any operation of SQS, without signature and faults.  Returns its answer.
sub call
{
	my ($self, $op, %request) = @_;
	return $self->control('call', op => $op, %request);
}

# Attributes other than FifoQueue, which the name says.  Returns the URL.
sub create_queue
{
	my ($self, $name, %attributes) = @_;
	$attributes{FifoQueue} = 'true' if $name =~ /\.fifo$/;
	# values are strings even where they are numbers
	return $self->call('CreateQueue', QueueName => $name, Attributes => { map { $_ => "$attributes{$_}" } keys %attributes })->{QueueUrl};
}

# The same with a dead letter queue, to which messages go after $max receives.
# Returns both URLs.  The other queue's name: orders.fifo, orders-dead.fifo.
sub create_queue_with_dead_letters
{
	my ($self, $name, $max, %attributes) = @_;
	(my $dead = $name) =~ s/(?=\.fifo$|$)/-dead/;
	my $dead_url = $self->create_queue($dead);
	my $policy = $json->encode({ deadLetterTargetArn => $self->queue($dead)->{arn}, maxReceiveCount => $max });
	return ($self->create_queue($name, %attributes, RedrivePolicy => $policy), $dead_url);
}

sub url
{
	my ($self, $queue) = @_;
	return $self->call('GetQueueUrl', QueueName => $queue)->{QueueUrl};
}

# Faults.  plant returns the number of the fault, chaos those of all.
sub plant
{
	my ($self, %spec) = @_;
	return $self->control('plant', %spec)->{number};
}

sub chaos
{
	my ($self, %spec) = @_;
	return @{ $self->control('chaos', %spec)->{numbers} };
}

sub clear
{
	my ($self, @numbers) = @_;
	return $self->control('clear', @numbers ? (numbers => \@numbers) : ());
}

# How often a fault, or all of them, hit a request.
sub hits
{
	my ($self, $number) = @_;
	my $sum = 0;
	$sum += $_->{hits} for grep { !defined $number || $_->{number} == $number } @{ $self->control('faults')->{faults} };
	return $sum;
}

# advance => s: the queues' clock; skew => s: the wall clock.
sub clock
{
	my ($self, %args) = @_;
	return $self->control('clock', %args);
}

# The state of a queue: visible, in_flight, delayed, accepted, duplicates (counts), arn, attributes.
sub queue
{
	my ($self, $queue) = @_;
	return $self->control('queue', queue => $queue);
}

# All messages that a queue ever accepted, in order, as hashes with these fields (or
# those that are asked for).  attributes: as in SQS's JSON; at: by the queues' clock;
# request: the number of the request with which it came.
my @fields = qw(message_id seq group dedup body attributes trace at request);

sub accepted
{
	my ($self, $queue, @only) = @_;
	return $self->_messages('accepted', $queue, @only ? @only : @fields);
}

# What was dropped as a duplicate; message_id and seq are those of the first.
sub duplicates
{
	my ($self, $queue, @only) = @_;
	return $self->_messages('duplicates', $queue, @only ? @only : @fields);
}

# Receives and deletes until nothing is visible any more; returns the messages in the
# order in which they came, with receive_count too.
sub drain
{
	my ($self, $queue, @only) = @_;
	return $self->_messages('drain', $queue, @only ? @only : (@fields, 'receive_count'));
}

# The same three as bytes in PostgreSQL's COPY format.
sub copy
{
	my ($self, $what, $queue, @only) = @_;
	return $self->_post($what, { queue => $queue, copy => \@only });
}

sub _messages
{
	my ($self, $what, $queue, @only) = @_;
	my %unescaped = (t => "\t", n => "\n", r => "\r", '\\' => '\\');

	return map {
		my %message;
		@message{@only} = map {
			my $value = $_;
			utf8::decode($value);
			$value =~ s/\\(.)/$unescaped{$1}/g unless $value eq '\N';
			$value eq '\N' ? undef : $value;
		} split /\t/, $_, -1;
		$message{attributes} = $text->decode($message{attributes}) if exists $message{attributes};
		\%message;
	} split /\n/, $self->copy($what, $queue, @only);
}

# The requests that came, in order.  Options: since => number, op, queue, whole => 1.
sub requests
{
	my ($self, %which) = @_;
	return @{ $self->control('requests', %which)->{requests} };
}

1;
