#!/usr/bin/perl
#
# plot.pl DIRECTORY: draws held.svg and latency.svg from held.tsv and latency.tsv there.

use strict;
use warnings FATAL => 'all';

my ($dir) = @ARGV;
my ($width, $height, $left, $right, $top, $bottom) = (760, 380, 70, 190, 50, 50);
my @colours = map { "#$_" } qw(0072b2 56b4e9 d55e00 e69f00);

sub lines_of
{
	my ($name) = @_;
	open(my $fh, '<', "$dir/$name.tsv") or return;
	return map { [ split /\t/ ] } grep { !/^#/ } map { s/\n//r } <$fh>;
}

sub median
{
	my @sorted = sort { $a <=> $b } @_;
	return ($sorted[ $#sorted / 2 ] + $sorted[ ($#sorted + 1) / 2 ]) / 2;
}

sub text
{
	my ($x, $y, $anchor, $text, $size) = @_;
	return sprintf qq(<text x="%.1f" y="%.1f" text-anchor="%s" font-size="%d">%s</text>\n), $x, $y, $anchor, $size // 12, $text;
}

sub stroke
{
	my ($colour, $width, @points) = @_;
	return sprintf qq(<polyline fill="none" stroke="%s" stroke-width="%d" points="%s"/>\n), $colour, $width,
	  join(' ', map { sprintf '%.1f,%.1f', @$_ } @points);
}

# $points{line}{x} = [y of each round]; @x: [x, label]; @y: [y, label], from the lowest to the highest.
sub draw
{
	my ($name, $title, $x_title, $names, $points, $x, $y, $scale) = @_;
	my ($end, $base) = ($width - $right, $height - $bottom);
	my ($x0, $x1) = ($x->[0][0], $x->[-1][0]);
	my ($y0, $y1) = map { $scale->($_->[0]) } $y->[0], $y->[-1];
	my $px = sub { $left + ($_[0] - $x0) / ($x1 - $x0 || 1) * ($end - $left) };
	my $py = sub { $base - ($scale->($_[0]) - $y0) / ($y1 - $y0) * ($base - $top) };
	my $n = 0;

	open(my $svg, '>', "$dir/$name.svg") or die "$dir/$name.svg: $!";
	print $svg qq(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 $width $height" font-family="sans-serif">\n),
	  qq(<rect width="$width" height="$height" fill="white"/>\n), text($left, 25, 'start', $title, 15);
	print $svg stroke('#ddd', 1, [ $left, $py->($_->[0]) ], [ $end, $py->($_->[0]) ]),
	  text($left - 8, $py->($_->[0]) + 4, 'end', $_->[1]) for @$y;
	print $svg text($px->($_->[0]), $base + 18, 'middle', $_->[1]) for @$x;
	print $svg text($end, $base + 38, 'end', $x_title);
	for my $line (grep { $points->{$_} } @$names)
	{
		my $of = $points->{$line};
		my $colour = $colours[ $n % @colours ];
		my $at = $top + 20 * $n++;
		print $svg stroke($colour, 2, map { [ $px->($_), $py->(median(@{ $of->{$_} })) ] } sort { $a <=> $b } keys %$of),
		  stroke($colour, 3, [ $end + 12, $at ], [ $end + 32, $at ]), text($end + 38, $at + 4, 'start', $line);
	}
	print $svg "</svg>\n";
	close $svg;
	return;
}

my %title = ('ours held' => 'taskoutbox', 'ours free' => 'taskoutbox, nothing held', 'skip_locked held' => 'SKIP LOCKED', 'PgQ held' => 'PgQ');
my (%points, $seconds, $most);
for (lines_of('held'))
{
	my ($side, $held, $second, $rate) = @$_;
	push @{ $points{ $title{"$side $held"} }{$second} }, $rate;
	$seconds = $second if $second > ($seconds // 0);
	$most = $rate if $rate > ($most // 0);
}
if (%points)
{
	my $step = 10**int(log($most) / log(10));
	$step /= 2 if $most / $step < 3;
	draw('held', 'Messages a second while a transaction is held open', 'seconds', [ @title{ 'ours held', 'ours free', 'skip_locked held', 'PgQ held' } ], \%points,
		[ map { [ $_, $_ ] } grep { $_ == 1 || $_ % 5 == 0 || $_ == $seconds } 1 .. $seconds ],
		[ map { [ $_ * $step, $_ * $step >= 1000 ? $_ * $step / 1000 . 'k' : $_ * $step ] } 0 .. int($most / $step) + 1 ], sub { $_[0] });
}

%title = (ours => 'taskoutbox', notify => 'table + NOTIFY');
my @quantiles = (1, 10, 25, 50, 75, 90, 95, 99, 99.9);
%points = ();
for (lines_of('latency'))
{
	my ($side, @ms) = @$_;
	push @{ $points{ $title{$side} // $side }{$_} }, $ms[$_] for 0 .. $#ms;
}
draw('latency', 'From the return of the commit to the message in hand, 50 a second: milliseconds', 'percentile',
	[ 'taskoutbox', 'table + NOTIFY', 'graphile-worker', 'pg-boss' ], \%points,
	[ map { [ $_, $quantiles[$_] ] } 0 .. $#quantiles ],
	# What arrives before the commit's return is read takes no time.
	[ map { [ $_, $_ ] } 0.01, 0.1, 1, 10, 100, 1000 ], sub { log($_[0] > .01 ? $_[0] : .01) }) if %points;
