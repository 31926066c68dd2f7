# Starts fauxqs (an SQS emulator that others wrote) and runs AWS's own client
# against it, or against any other endpoint: see test/fauxqs.  Both need Node 20
# and what "npm ci" puts there, so ask missing() first and skip loudly.

package Fauxqs;

use strict;
use warnings FATAL => 'all';

use Carp;
use FakeSqs;
use JSON::PP;

our @ISA = ('FakeSqs');

my $dir = "$FakeSqs::test_dir/fauxqs";
my $json = JSON::PP->new->utf8;

# Why it cannot run here, or nothing.
sub missing
{
	my $version = qx(node --version 2>/dev/null) || '';
	return 'no node 20 or later' unless $version =~ /^v(\d+)/ && $1 >= 20;
	return 'nothing in test/fauxqs/node_modules (npm ci)' unless -d "$dir/node_modules/fauxqs" && -f payloads();
	return;
}

# What GitHub's webhooks send: a file of JSON, an array of objects with "examples".
sub payloads { return "$dir/node_modules/\@octokit/webhooks-examples/api.github.com/index.json" }

sub start
{
	my ($class, %opt) = @_;
	my $region = defined $opt{region} ? $opt{region} : 'eu-central-1';
	my $self = $class->spawn('node', "$dir/server.mjs", $region);
	# It checks no signatures, but clients want to sign.
	$self->{ready} = { %{ $self->{ready} }, region => $region, access_key => 'any', secret_key => 'any' };
	return $self;
}

# AWS's client, as create, send or consume of client.mjs.  $at: a server of this
# or of class FakeSqs.  Returns a file to read the lines of JSON from that it prints.
sub start_client
{
	my ($at, $command, $queue, $options) = @_;
	local %ENV = (%ENV, $at->environment);
	open(my $out, '-|', 'node', "$dir/client.mjs", $at->endpoint, $command, $queue, $json->encode($options))
	  or croak "node: $!";
	return $out;
}

# The same, with the lines decoded.
sub client
{
	my ($at, $command, $queue, $options) = @_;
	my $out = start_client($at, $command, $queue, $options);
	my @lines = map { $json->decode($_) } <$out>;
	close($out) or croak "client.mjs $command $queue failed";
	return @lines;
}

sub create_queue
{
	my ($self, $queue, %attributes) = @_;
	$attributes{FifoQueue} = 'true' if $queue =~ /\.fifo$/;
	my ($created) = client($self, 'create', $queue, { map { $_ => "$attributes{$_}" } keys %attributes });
	return $created->{url};
}

# Returns SQS's answer: Successful and Failed.
sub send_batch
{
	my ($at, $queue, @entries) = @_;
	return (client($at, 'send', $queue, \@entries))[0];
}

# Messages as hashes: id, group, dedup, seq, receive_count, trace, body, attributes.
# Options: messages, idle, loops, keep.
sub consume
{
	my ($at, $queue, %options) = @_;
	return client($at, 'consume', $queue, \%options);
}

1;
