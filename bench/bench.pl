#!/usr/bin/perl
#
# Measures taskoutbox against plain SQL and against other queues.
#
#   bench.pl                 all measures; with BENCH=name only those of that name
#   QUICK=1                  smaller, and fewer rounds: for development, not for claims
#
# A private server with fsync and synchronous_commit on, the library preloaded and the relay
# running, whatever is measured: a comparison is between two sides of one server. The sides
# take turns, A B A B, in at least 7 rounds; a ratio is taken within a round, since a machine
# is not the same from one minute to the next, and what is shown is the median of these, and
# their range. Tables are emptied between the sides, there is no autovacuum and no checkpoint
# within a run: those would hit one side or the other by chance. The load comes from pgbench
# with prepared statements over a unix socket, latency and CPU time from sessions of Perl's.
# The baseline is what one would write without a queue, in SQL, and is there in full.
#
# Each file beside this one has measures, see measure() in it. What was measured stands in
# bench/results: table.tsv is the table, rounds.tsv every single number.

use strict;
use warnings FATAL => 'all';

use FindBin;
use lib $FindBin::RealBin;
use Bench;
use POSIX qw(strftime);

require "$FindBin::RealBin/$_.pl" for qw(enqueue receive latency workers restart);

$| = 1;
my $only = $ENV{BENCH};
my @chosen = grep { !$only || $_->{name} eq $only } measures();
die "BENCH=$only: no such measure; there are: @{[ map { $_->{name} } measures() ]}\n" unless @chosen;

sub first_line
{
	my ($file, $pattern) = @_;
	open(my $fh, '<', $file) or return 'unknown';
	my ($line) = map { $_ =~ $pattern ? $1 : () } <$fh>;
	return $line // 'unknown';
}

sub lock_version
{
	my ($name) = @_;
	open(my $fh, '<', "$FindBin::RealBin/peers/package.json") or return 'unknown';
	my ($version) = map { /"\Q$name\E": "([^"]+)"/ ? $1 : () } <$fh>;
	return $version;
}

$SIG{INT} = $SIG{TERM} = sub { exit 1 };
END { my $code = $?; stop_server(); $? = $code }

start_server();
chomp(my $cpus = qx(nproc));
chomp(my $commit = $ENV{BENCH_COMMIT} || 'unknown');
my @heading = (
	strftime('%Y-%m-%d %H:%M UTC', gmtime) . ($Bench::quick ? ', QUICK: not for claims' : ''),
	"taskoutbox $commit, PostgreSQL " . value('SHOW server_version') . ', PgQ '
	  . (value(q(SELECT default_version FROM pg_available_extensions WHERE name = 'pgq')) // 'not there')
	  . ', ' . join(', ', map { "$_ " . lock_version($_) } qw(graphile-worker pg-boss)),
	"$cpus CPUs (" . first_line('/proc/cpuinfo', qr/^model name\s*:\s*(.*)/) . '), '
	  . sprintf('%.0f', first_line('/proc/meminfo', qr/^MemTotal:\s*(\d+)/) / 1024 ** 2) . ' GB, Linux '
	  . first_line('/proc/sys/kernel/osrelease', qr/^(\S+)/) . ', load '
	  . first_line('/proc/loadavg', qr/^(\S+)/),
	join(', ', map { "$_ = " . value("SHOW $_") } qw(fsync synchronous_commit shared_buffers wal_level
		max_wal_size checkpoint_timeout autovacuum jit taskoutbox.relay_memory)));
heading(@heading);
print "$_\n" for @heading;
printf "\n%-3s %-66s %9s  %-16s %-8s %s\n", qw(no measure value range target verdict);

my $failed = 0;
for my $measure (@chosen)
{
	my $start = mono();
	eval { $measure->{code}->(); 1 } or do {
		print STDERR "bench: $measure->{name} failed: $@", map { "  $_" } server_log();
		$failed = 1;
	};
	run_sql('CHECKPOINT');
	save('seconds', $measure->{name}, sprintf('%.0f', mono() - $start));
}
write_markdown();
exit($failed ? 1 : 0);
