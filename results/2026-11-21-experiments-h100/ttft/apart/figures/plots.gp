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
$stream_0 << EOD
0 0.008
-1 0.055
-2 0.028
-3 0.033
-4 0.127
-5 0.599
-6 0.091689
-7 0.968853
EOD
$stream_1 << EOD
0 0.009
-1 0.3228
-2 0.034
-3 0.044
-4 0.23465
-5 0.608
-6 0.66468795
-7 1.9542594
EOD
$stream_2 << EOD
0 0.011
-1 1.72565
-2 0.04333
-3 0.06132
-4 0.25
-5 0.62232
-6 1.62193339
-7 3.45648247
EOD
do for [fmt in 'png svg'] {
if (fmt eq 'png') { set terminal pngcairo noenhanced size 900,678 font 'sans,11' background '#ffffff' } else { set terminal svg noenhanced size 900,678 font 'sans,13' background '#ffffff' }
set output 'stream_ttft_parts.'.fmt
set lmargin at screen 0.24
set rmargin at screen 0.97
set tmargin at screen 0.8820
set bmargin at screen 0.0885
set style fill solid 0.95 noborder
set key at screen 0.97,0.9086 right center horizontal
set grid xtics noytics
unset ylabel
set title 'Time to the first token: each part by itself (percentiles do not add up)' offset 0,1.2
set xlabel 'ms'
set xrange [0:3.94039002]
set yrange [-7.5:0.5]
set ytics scale 0 ('receive' 0, 'wait for a tokenizer worker' -1, 'parse' -2, 'tokenize' -3, 'queue wait' -4, 'prefill to first token' -5, 'outside the server' -6, 'TTFT (client)' -7)
plot $stream_0 using ($2/2):($1+0.26):($2/2):(0.12) with boxxyerror lc rgb '#1f6fb4' title 'p50', $stream_0 using 2:($1+0.26):(sprintf($2 >= 100 ? ' %.0f' : ' %.3g', $2)) with labels left font ',9' notitle, $stream_1 using ($2/2):($1+0):($2/2):(0.12) with boxxyerror lc rgb '#6ba5d6' title 'p95', $stream_1 using 2:($1+0):(sprintf($2 >= 100 ? ' %.0f' : ' %.3g', $2)) with labels left font ',9' notitle, $stream_2 using ($2/2):($1+-0.26):($2/2):(0.12) with boxxyerror lc rgb '#b9d5ec' title 'p99', $stream_2 using 2:($1+-0.26):(sprintf($2 >= 100 ? ' %.0f' : ' %.3g', $2)) with labels left font ',9' notitle
unset lmargin
unset rmargin
unset tmargin
unset bmargin
set grid noxtics ytics
set autoscale
set ytics scale 1 autofreq
unset output
}
