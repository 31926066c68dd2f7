# Order and exactly-once accounting under torture: what Torture.pm describes, in
# four configurations.
#
#   TORTURE_SECONDS   seconds of load per configuration (default 30, then 15)
#   TORTURE_SEED      seed of all choices; printed at the start
#   TORTURE_ONLY      runs only the configuration of that name

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib "$FindBin::RealBin/../perl";
use PostgreSQL::Test::Utils;
use Test::More;
use Torture;

my $seed = $ENV{TORTURE_SEED} || 1 + int(rand 1_000_000);
my $seconds = $ENV{TORTURE_SECONDS} || 0;
my $only = $ENV{TORTURE_ONLY} || '';
diag("TORTURE_SEED=$seed");

# The judge first: each kind of violation is seen, and what is allowed is not.
my $inf = 9**9**9;

sub message
{
	my ($id, %m) = @_;
	return {
		id => $id, txn => "c.$id", pos => $id, started => $id * 10, committed => $id * 10 + 5,
		done => $id * 100, died => -$inf, s1 => $id * 100 - 10, by => $id * 100 - 11, %m
	};
}

sub event
{
	my ($id, %e) = @_;
	return { id => $id, s0 => $id * 100 - 11, seq => $id * 100 - 10, pos => 1, at => 0, %e };
}

sub verdict
{
	return join ' ', map { /^(\w+)/ ? $1 : () } Torture::check_group(@_);
}

is(verdict([ message(1), message(2) ], [ event(1), event(2) ]), '', 'judge: one after the other');
is( verdict(
		[ message(1), message(2) ],
		[ event(1), event(2, s0 => 70, seq => 71), event(2) ]),
	'order', 'judge: received before the one that precedes it is done');
is( verdict(
		[ message(1), message(2, started => 12) ],
		[ event(1), event(2, s0 => 70, seq => 71), event(2) ]),
	'', 'judge: concurrent ones have no order');
is( verdict(
		[ message(1, txn => 'c.1'), message(2, txn => 'c.1', started => 12) ],
		[ event(1), event(2, s0 => 70, seq => 71), event(2) ]),
	'order', 'judge: those of one transaction have');
is( verdict(
		[ message(1), message(2, started => 12) ],
		[ event(1), event(2, s0 => 93, seq => 94), event(2) ]),
	'exclusive', 'judge: two receives of a group at a time');
is( verdict(
		[ message(1), message(2, s1 => 91, by => 89) ],
		[ event(1), event(2, s0 => 89, seq => 91, pos => 2) ]),
	'', 'judge: two in one receive, in order');
is( verdict(
		[ message(1, s1 => 91), message(2, s1 => 90, by => 89, done => 95) ],
		[ event(1, pos => 2, seq => 91), event(2, s0 => 89, seq => 90) ]),
	'order', 'judge: two in one receive, out of order');
is( verdict(
		[ message(1, done => -$inf, died => 50, s1 => undef), message(2) ],
		[ event(1), event(2, at => 51) ]),
	'', 'judge: after one that died');
is( verdict(
		[ message(1, done => -$inf, died => 50, s1 => undef), message(2) ],
		[ event(1), event(2, at => 49) ]),
	'order', 'judge: before it died');
is(verdict([ message(1, done => $inf, s1 => undef), message(2) ], [ event(2) ]),
	'order', 'judge: one that was never done');

my @configurations = (
	[ 'default', seconds => 30 ],
	# Each commit overflows both: the relay lives on sweeps.
	[ 'overflow', seconds => 15, conf => "taskoutbox.ring_size = 1\ntaskoutbox.announce_size = 1" ],
	# More is waiting than the relay can hold.
	[ 'memory', seconds => 15, conf => "taskoutbox.relay_memory = '128kB'", memory => 131072, backlog => 8000 ],
	[ 'crash', seconds => 15, kill => 1 ]);

die "no configuration is named $only\n" if $only && !grep { $_->[0] eq $only } @configurations;
for my $c (@configurations)
{
	my ($name, %opt) = @$c;
	next if $only && $only ne $name;
	$opt{seconds} = $seconds if $seconds;
	subtest $name => sub { torture(name => $name, seed => $seed, %opt) };
}

done_testing();
