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
$off0 << EOD
1 2926.76933 2815.43935 2936.2092
0 301.842774 300.715291 302.919561
EOD
$off1 << EOD
1 2926.76933 2815.43935 2936.2092
0 301.842774 300.715291 302.919561
EOD
$off2 << EOD
1 1501432.67 1444320.39 1506275.32
0 154845.343 154266.944 155397.735
EOD
do for [fmt in 'png svg'] {
if (fmt eq 'png') { set terminal pngcairo noenhanced size 1280,332 font 'sans,11' background '#ffffff' } else { set terminal svg noenhanced size 1280,332 font 'sans,13' background '#ffffff' }
set output 'offline_throughput_compare.'.fmt
set style fill solid 0.85 noborder
unset key
unset ylabel
set grid xtics noytics
set multiplot layout 1,3 title 'Offline throughput: median, whiskers to least and most' margins 0.1297,0.9797,0.241,0.849 spacing 0.03,0.1
set yrange [-0.6:1.6]
set xrange [0:*]
set ytics ('flash' 1, 'naive' 0)
set title ''
set xlabel 'requests/s'
set xrange [0:3817.07196]
set xtics 1000
set format x '%g'
plot $off0 using ($2/2):1:($2/2):(0.32):(2-$1) with boxxyerror lc variable, $off0 using 2:1:3:4 with xerrorbars lc rgb '#333333' lw 1 pt -1, $off0 using 4:1:(sprintf($2 >= 1000 ? '  %.0f' : '  %.2f', $2)) with labels left font ',10'
set ytics ('' 1, '' 0)
set title ''
set xlabel 'output tokens/s'
set xrange [0:3817.07196]
set xtics 1000
set format x '%g'
plot $off1 using ($2/2):1:($2/2):(0.32):(2-$1) with boxxyerror lc variable, $off1 using 2:1:3:4 with xerrorbars lc rgb '#333333' lw 1 pt -1, $off1 using 4:1:(sprintf($2 >= 1000 ? '  %.0f' : '  %.2f', $2)) with labels left font ',10'
set ytics ('' 1, '' 0)
set title ''
set xlabel 'input and output tokens/s'
set xrange [0:1958157.92]
set xtics 500000
set format x '%.0f'
plot $off2 using ($2/2):1:($2/2):(0.32):(2-$1) with boxxyerror lc variable, $off2 using 2:1:3:4 with xerrorbars lc rgb '#333333' lw 1 pt -1, $off2 using 4:1:(sprintf($2 >= 1000 ? '  %.0f' : '  %.2f', $2)) with labels left font ',10'
unset multiplot
set grid noxtics ytics
set autoscale
set format x
set xtics autofreq
set ytics autofreq
unset output
}
