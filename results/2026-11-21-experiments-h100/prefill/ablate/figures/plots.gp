set encoding utf8
set datafile missing 'nan'
set grid ytics lc rgb '#e4e4e4' lw 1
set border 3 lc rgb '#555555'
set tics nomirror textcolor rgb '#333333'
set style fill transparent solid 0.16 noborder
set linetype 1 lc rgb '#1f6fb4' lw 2 dt 1 pt 7
set linetype 2 lc rgb '#e0701a' lw 2 dt 1 pt 5
set linetype 3 lc rgb '#2b9348' lw 2 dt 1 pt 9
set linetype 4 lc rgb '#b5263a' lw 2 dt 1 pt 11
set linetype 5 lc rgb '#7b4fa3' lw 2 dt 1 pt 7
set linetype 6 lc rgb '#7a5544' lw 2 dt 1 pt 5
set linetype 7 lc rgb '#d052a2' lw 2 dt 1 pt 9
set linetype 8 lc rgb '#5f6b73' lw 2 dt 1 pt 11
set linetype 9 lc rgb '#1f6fb4' lw 2 dt 2 pt 5
set linetype 10 lc rgb '#e0701a' lw 2 dt 2 pt 9
set linetype 11 lc rgb '#2b9348' lw 2 dt 2 pt 11
set linetype 12 lc rgb '#b5263a' lw 2 dt 2 pt 7
set linetype 13 lc rgb '#7b4fa3' lw 2 dt 2 pt 5
set linetype 14 lc rgb '#7a5544' lw 2 dt 2 pt 9
set linetype 15 lc rgb '#d052a2' lw 2 dt 2 pt 11
set linetype 16 lc rgb '#5f6b73' lw 2 dt 2 pt 7
$ablate << EOD
0 nan nan nan 0 "" "on: --prefill-backend flash    off: --prefill-backend naive    (plain)"
-1 23.9750242 23.1745585 26.72714 1 "TTFT p50" ""
-2 22.806136 14.8657896 27.8163445 1 "TTFT p99" ""
-3 41.5367634 41.1098971 41.9015584 1 "TPOT p50" ""
-4 12.9381268 12.2085944 13.5202388 1 "ITL p99" ""
-5 34.0634356 33.7141211 35.2031192 1 "E2E p50" ""
-6 26.5224303 24.3193945 27.5455765 1 "E2E p99" ""
-7 1.04858836 1.04745274 1.0590411 1 "time per token" ""
-8 6.34804458 6.27789208 6.41874425 1 "offline time per token" ""
EOD
do for [fmt in 'png svg'] {
if (fmt eq 'png') { set terminal pngcairo noenhanced size 900,346 font 'sans,11' background '#ffffff' } else { set terminal svg noenhanced size 900,346 font 'sans,13' background '#ffffff' }
set output 'ablate.'.fmt
unset key
unset ylabel
set grid xtics noytics
set ytics scale 0 ('' 1)
set style textbox opaque noborder
set lmargin at screen 0.2
set rmargin at screen 0.97
set tmargin at screen 0.8699
set bmargin at screen 0.2023
lo = 0.857142857
set yrange [-9.5:0.7]
set title 'Time without / time with, the least and the most of 4 pairs'
set xlabel 'right of 1 it is faster with the switch on; hollow: inside the noise'
set arrow 1 from 1, graph 0 to 1, graph 1 nohead lc rgb '#888888' lw 1.5 back
set logscale x
set xtics ('0.01' 0.01, '0.02' 0.02, '0.05' 0.05, '0.1' 0.1, '0.2' 0.2, '0.5' 0.5, '1' 1, '2' 2, '5' 5, '10' 10, '20' 20, '50' 50, '100' 100)
set xrange [0.857142857:48.1867921]
paint(r, c) = c == 0 ? 0x777777 : r > 1 ? 0x2b9348 : 0xb5263a
plot $ablate using 2:1:3:4:(paint($2, $5)):yticlabels(6) with xerrorbars lc rgb variable lw 1.5 pt -1, \
  $ablate using 2:($5 == 1 ? $1 : NaN):(paint($2, $5)) with points lc rgb variable pt 7 ps 1.1, \
  $ablate using 2:($5 == 1 ? NaN : $1) with points lc rgb '#777777' pt 6 ps 1.1, \
  $ablate using 4:1:(sprintf('  %.2f', $2)) with labels left font ',9', \
  $ablate using (strlen(strcol(7)) > 0 ? lo : NaN):1:7 with labels left boxed offset 1,0 textcolor rgb '#111111'
unset arrow 1
unset logscale x
set xtics autofreq
set ytics scale 1 autofreq
set grid noxtics ytics
set autoscale
unset lmargin
unset rmargin
unset tmargin
unset bmargin
unset output
}
