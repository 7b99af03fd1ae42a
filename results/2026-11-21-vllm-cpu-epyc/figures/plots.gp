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
$sttft_0 << EOD
0.4 48.6106595 58.5520434 63.2987749
EOD
$stpot_0 << EOD
0.4 6.47296482 9.64964252 10.0646457
EOD
$sitl_0 << EOD
0.4 5.0017675 8.3502687 45.2052051
EOD
$se2e_0 << EOD
0.4 254.602034 328.510333 359.323979
EOD
unset logscale x
set xtics ('0.4' 0.4)
set xrange [-0.1:0.9]
set xlabel 'scale of the trace times (smaller is heavier)'
do for [fmt in 'png svg'] {
if (fmt eq 'png') { set terminal pngcairo noenhanced size 1280,920 font 'sans,11' background '#ffffff' } else { set terminal svg noenhanced size 1280,920 font 'sans,13' background '#ffffff' }
set output 'online_latency_compare.'.fmt
set multiplot layout 2,2 title 'Latency: p90 line, p50 to p90 band, hollow p99' margins 0.07,0.98,0.0696,0.8707 spacing 0.08,0.1402
unset key
set label 101 'vllm' at screen 0.4852,0.9500 left point lt 1 ps 1.4 offset 1,0
set ylabel 'TTFT (ms)'
set title 'TTFT'
set yrange [0:*]
plot $sttft_0 using 1:2:3 with filledcurves lt 1 notitle, \
  $sttft_0 using 1:3 with linespoints lt 1 ps 0.9 title 'vllm', \
  $sttft_0 using 1:4 with points lt 1 lw 1.5 pt 6 ps 1.3 notitle
unset label 101
set ylabel 'TPOT (ms)'
set title 'TPOT'
set yrange [0:*]
plot $stpot_0 using 1:2:3 with filledcurves lt 1 notitle, \
  $stpot_0 using 1:3 with linespoints lt 1 ps 0.9 title 'vllm', \
  $stpot_0 using 1:4 with points lt 1 lw 1.5 pt 6 ps 1.3 notitle
set ylabel 'ITL (ms)'
set title 'ITL'
set yrange [0:*]
plot $sitl_0 using 1:2:3 with filledcurves lt 1 notitle, \
  $sitl_0 using 1:3 with linespoints lt 1 ps 0.9 title 'vllm', \
  $sitl_0 using 1:4 with points lt 1 lw 1.5 pt 6 ps 1.3 notitle
set ylabel 'E2E (ms)'
set title 'E2E'
set yrange [0:*]
plot $se2e_0 using 1:2:3 with filledcurves lt 1 notitle, \
  $se2e_0 using 1:3 with linespoints lt 1 ps 0.9 title 'vllm', \
  $se2e_0 using 1:4 with points lt 1 lw 1.5 pt 6 ps 1.3 notitle
unset multiplot
unset output
}
do for [fmt in 'png svg'] {
if (fmt eq 'png') { set terminal pngcairo noenhanced size 1280,920 font 'sans,11' background '#ffffff' } else { set terminal svg noenhanced size 1280,920 font 'sans,13' background '#ffffff' }
set output 'online_latency_p90_only.'.fmt
set multiplot layout 2,2 title 'Latency, p90' margins 0.07,0.98,0.0696,0.8707 spacing 0.08,0.1402
unset key
set label 101 'vllm' at screen 0.4852,0.9500 left point lt 1 ps 1.4 offset 1,0
set ylabel 'TTFT p90 (ms)'
set title 'TTFT'
set yrange [0:*]
plot $sttft_0 using 1:3 with linespoints lt 1 ps 0.9 title 'vllm'
unset label 101
set ylabel 'TPOT p90 (ms)'
set title 'TPOT'
set yrange [0:*]
plot $stpot_0 using 1:3 with linespoints lt 1 ps 0.9 title 'vllm'
set ylabel 'ITL p90 (ms)'
set title 'ITL'
set yrange [0:*]
plot $sitl_0 using 1:3 with linespoints lt 1 ps 0.9 title 'vllm'
set ylabel 'E2E p90 (ms)'
set title 'E2E'
set yrange [0:*]
plot $se2e_0 using 1:3 with linespoints lt 1 ps 0.9 title 'vllm'
unset multiplot
unset output
}
do for [fmt in 'png svg'] {
if (fmt eq 'png') { set terminal pngcairo noenhanced size 1280,920 font 'sans,11' background '#ffffff' } else { set terminal svg noenhanced size 1280,920 font 'sans,13' background '#ffffff' }
set output 'online_latency_p99_only.'.fmt
set multiplot layout 2,2 title 'Latency, p99' margins 0.07,0.98,0.0696,0.8707 spacing 0.08,0.1402
unset key
set label 101 'vllm' at screen 0.4852,0.9500 left point lt 1 ps 1.4 offset 1,0
set ylabel 'TTFT p99 (ms)'
set title 'TTFT'
set yrange [0:*]
plot $sttft_0 using 1:4 with linespoints lt 1 ps 0.9 title 'vllm'
unset label 101
set ylabel 'TPOT p99 (ms)'
set title 'TPOT'
set yrange [0:*]
plot $stpot_0 using 1:4 with linespoints lt 1 ps 0.9 title 'vllm'
set ylabel 'ITL p99 (ms)'
set title 'ITL'
set yrange [0:*]
plot $sitl_0 using 1:4 with linespoints lt 1 ps 0.9 title 'vllm'
set ylabel 'E2E p99 (ms)'
set title 'E2E'
set yrange [0:*]
plot $se2e_0 using 1:4 with linespoints lt 1 ps 0.9 title 'vllm'
unset multiplot
unset output
}
do for [fmt in 'png svg'] {
if (fmt eq 'png') { set terminal pngcairo noenhanced size 760,520 font 'sans,11' background '#ffffff' } else { set terminal svg noenhanced size 760,520 font 'sans,13' background '#ffffff' }
set output 'online_ttft_ms.'.fmt
set key outside top center horizontal Left reverse maxrows 3
set ylabel 'TTFT (ms)'
set title 'TTFT: p90 line, p50 to p90 band, hollow p99'
set yrange [0:*]
plot $sttft_0 using 1:2:3 with filledcurves lt 1 notitle, \
  $sttft_0 using 1:3 with linespoints lt 1 ps 0.9 title 'vllm', \
  $sttft_0 using 1:4 with points lt 1 lw 1.5 pt 6 ps 1.3 notitle
unset output
}
do for [fmt in 'png svg'] {
if (fmt eq 'png') { set terminal pngcairo noenhanced size 760,520 font 'sans,11' background '#ffffff' } else { set terminal svg noenhanced size 760,520 font 'sans,13' background '#ffffff' }
set output 'online_tpot_ms.'.fmt
set key outside top center horizontal Left reverse maxrows 3
set ylabel 'TPOT (ms)'
set title 'TPOT: p90 line, p50 to p90 band, hollow p99'
set yrange [0:*]
plot $stpot_0 using 1:2:3 with filledcurves lt 1 notitle, \
  $stpot_0 using 1:3 with linespoints lt 1 ps 0.9 title 'vllm', \
  $stpot_0 using 1:4 with points lt 1 lw 1.5 pt 6 ps 1.3 notitle
unset output
}
do for [fmt in 'png svg'] {
if (fmt eq 'png') { set terminal pngcairo noenhanced size 760,520 font 'sans,11' background '#ffffff' } else { set terminal svg noenhanced size 760,520 font 'sans,13' background '#ffffff' }
set output 'online_itl_ms.'.fmt
set key outside top center horizontal Left reverse maxrows 3
set ylabel 'ITL (ms)'
set title 'ITL: p90 line, p50 to p90 band, hollow p99'
set yrange [0:*]
plot $sitl_0 using 1:2:3 with filledcurves lt 1 notitle, \
  $sitl_0 using 1:3 with linespoints lt 1 ps 0.9 title 'vllm', \
  $sitl_0 using 1:4 with points lt 1 lw 1.5 pt 6 ps 1.3 notitle
unset output
}
do for [fmt in 'png svg'] {
if (fmt eq 'png') { set terminal pngcairo noenhanced size 760,520 font 'sans,11' background '#ffffff' } else { set terminal svg noenhanced size 760,520 font 'sans,13' background '#ffffff' }
set output 'online_e2e_ms.'.fmt
set key outside top center horizontal Left reverse maxrows 3
set ylabel 'E2E (ms)'
set title 'E2E: p90 line, p50 to p90 band, hollow p99'
set yrange [0:*]
plot $se2e_0 using 1:2:3 with filledcurves lt 1 notitle, \
  $se2e_0 using 1:3 with linespoints lt 1 ps 0.9 title 'vllm', \
  $se2e_0 using 1:4 with points lt 1 lw 1.5 pt 6 ps 1.3 notitle
unset output
}
unset logscale x
set xtics autofreq
set autoscale x
$cdf0_0 << EOD
17.458145 0.000000
22.598573 0.052632
23.994507 0.105263
39.807488 0.157895
42.658734 0.210526
43.031237 0.263158
45.639114 0.315789
45.995523 0.368421
46.63309 0.421053
48.393857 0.473684
48.827462 0.526316
52.596613 0.578947
53.396622 0.631579
54.874468 0.684211
55.445386 0.736842
55.544304 0.789474
58.222563 0.842105
58.427889 0.894737
59.669433 0.947368
64.150102 1.000000
EOD
$cdf1_0 << EOD
3.02882852 0.000000
4.07489274 0.052632
4.89718568 0.105263
4.97483558 0.157895
5.79906661 0.210526
5.98763294 0.263158
5.99397558 0.315789
6.36071639 0.368421
6.41598661 0.421053
6.42120435 0.473684
6.52472529 0.526316
7.08250645 0.578947
7.48254516 0.631579
7.52291161 0.684211
7.68385658 0.736842
8.44028035 0.789474
8.94607945 0.842105
9.6370899 0.894737
9.7626161 0.947368
10.1354922 1.000000
EOD
$cdf2_0 << EOD
0 0.000000
0.39713312 0.010000
2.1760218 0.020000
2.46700473 0.030000
2.59502436 0.040000
2.6754437 0.050000
2.71597914 0.060000
2.87104658 0.070000
2.93694032 0.080000
3.0065225 0.090000
3.1719993 0.100000
3.2627017 0.110000
3.33707164 0.120000
3.3890172 0.130000
3.41640344 0.140000
3.43433025 0.150000
3.45718288 0.160000
3.47494793 0.170000
3.50031454 0.180000
3.5307261 0.190000
3.5912406 0.200000
3.61519528 0.210000
3.63899456 0.220000
3.71285219 0.230000
3.76001492 0.240000
3.78075625 0.250000
3.83088794 0.260000
3.84947919 0.270000
3.8612884 0.280000
3.88889703 0.290000
3.9170778 0.300000
3.99007331 0.310000
4.06837896 0.320000
4.15419888 0.330000
4.19034642 0.340000
4.2485301 0.350000
4.29217676 0.360000
4.37677676 0.370000
4.416695 0.380000
4.61867502 0.390000
4.6894672 0.400000
4.76444616 0.410000
4.79560512 0.420000
4.80241827 0.430000
4.80692216 0.440000
4.85877305 0.450000
4.87930654 0.460000
4.9245005 0.470000
4.94635376 0.480000
4.97369424 0.490000
5.0017675 0.500000
5.05443274 0.510000
5.08849572 0.520000
5.10255906 0.530000
5.1131934 0.540000
5.17723595 0.550000
5.18886368 0.560000
5.20774547 0.570000
5.30194652 0.580000
5.33857213 0.590000
5.3790156 0.600000
5.47823649 0.610000
5.49595374 0.620000
5.6413301 0.630000
5.65722436 0.640000
5.66263235 0.650000
5.67639254 0.660000
5.69364329 0.670000
5.72251624 0.680000
5.73974912 0.690000
5.7640995 0.700000
5.78648468 0.710000
5.81147364 0.720000
5.85697574 0.730000
5.89158682 0.740000
5.9317225 0.750000
5.95747816 0.760000
5.98056369 0.770000
5.99516942 0.780000
6.10396594 0.790000
6.219148 0.800000
6.44579853 0.810000
6.47645988 0.820000
6.55893684 0.830000
6.7886126 0.840000
7.0102695 0.850000
7.64073344 0.860000
8.1853183 0.870000
8.26942056 0.880000
8.33203522 0.890000
8.3502687 0.900000
8.42207335 0.910000
8.95257948 0.920000
9.76984911 0.930000
16.6769314 0.940000
20.7094538 0.950000
31.5110766 0.960000
38.1219809 0.970000
43.21204 0.980000
45.2052051 0.990000
50.851319 1.000000
EOD
$cdf3_0 << EOD
148.768152 0.000000
176.818476 0.052632
185.991108 0.105263
197.45187 0.157895
216.51548 0.210526
225.424109 0.263158
237.993628 0.315789
244.241132 0.368421
252.726512 0.421053
254.340971 0.473684
254.863097 0.526316
272.954322 0.578947
274.617634 0.631579
276.241497 0.684211
302.349656 0.736842
310.476153 0.789474
323.323986 0.842105
326.635606 0.894737
345.382877 0.947368
362.594114 1.000000
EOD
do for [fmt in 'png svg'] {
if (fmt eq 'png') { set terminal pngcairo noenhanced size 1280,920 font 'sans,11' background '#ffffff' } else { set terminal svg noenhanced size 1280,920 font 'sans,13' background '#ffffff' }
set output 'online_cdf_scale_0.4.'.fmt
set multiplot layout 2,2 title 'Distribution at scale 0.4' margins 0.07,0.98,0.0696,0.8707 spacing 0.08,0.1402
unset key
set label 101 'vllm' at screen 0.4852,0.9500 left point lt 1 ps 1.4 offset 1,0
set yrange [0:1]
set xlabel 'TTFT (ms)'
set xrange [0:*]
set ylabel 'share of all'
set title 'TTFT'
plot $cdf0_0 using 1:2 with lines lt 1
unset label 101
set xlabel 'TPOT (ms)'
set xrange [0:*]
set ylabel 'share of all'
set title 'TPOT'
plot $cdf1_0 using 1:2 with lines lt 1
set xlabel 'ITL (ms)'
set xrange [0:*]
set ylabel 'share of all'
set title 'ITL'
plot $cdf2_0 using 1:2 with lines lt 1
set xlabel 'E2E (ms)'
set xrange [0:*]
set ylabel 'share of all'
set title 'E2E'
plot $cdf3_0 using 1:2 with lines lt 1
unset multiplot
unset output
}
set autoscale x
set autoscale y
$off0 << EOD
2 181.917923 173.676266 190.159579
1 168.374311 161.983278 174.765344
0 28.3806084 27.6847513 29.0764655
EOD
$off1 << EOD
2 5821.37353 5557.64052 6085.10654
1 5387.97795 5183.46489 5592.491
0 908.179469 885.912043 930.446896
EOD
$off2 << EOD
2 17464.1206 16672.9215 18255.3196
1 16163.9338 15550.3947 16777.473
0 2724.53841 2657.73613 2791.34069
EOD
do for [fmt in 'png svg'] {
if (fmt eq 'png') { set terminal pngcairo noenhanced size 1280,378 font 'sans,11' background '#ffffff' } else { set terminal svg noenhanced size 1280,378 font 'sans,13' background '#ffffff' }
set output 'offline_throughput_compare.'.fmt
set style fill solid 0.85 noborder
unset key
unset ylabel
set grid xtics noytics
set multiplot layout 1,3 title 'Offline throughput: median, whiskers to least and most' margins 0.1297,0.9797,0.212,0.868 spacing 0.03,0.1
set yrange [-0.6:2.6]
set xrange [0:*]
set ytics ('roseinfer+inproc' 2, 'roseinfer' 1, 'vllm' 0)
set title ''
set xlabel 'requests/s'
set xrange [0:247.207453]
set xtics 50
plot $off0 using ($2/2):1:($2/2):(0.32):(3-$1) with boxxyerror lc variable, $off0 using 2:1:3:4 with xerrorbars lc rgb '#333333' lw 1 pt -1, $off0 using 4:1:(sprintf($2 >= 1000 ? '  %.0f' : '  %.2f', $2)) with labels left font ',10'
set ytics ('' 2, '' 1, '' 0)
set title ''
set xlabel 'output tokens/s'
set xrange [0:7910.6385]
set xtics 2000
plot $off1 using ($2/2):1:($2/2):(0.32):(3-$1) with boxxyerror lc variable, $off1 using 2:1:3:4 with xerrorbars lc rgb '#333333' lw 1 pt -1, $off1 using 4:1:(sprintf($2 >= 1000 ? '  %.0f' : '  %.2f', $2)) with labels left font ',10'
set ytics ('' 2, '' 1, '' 0)
set title ''
set xlabel 'input and output tokens/s'
set xrange [0:23731.9155]
set xtics 5000
plot $off2 using ($2/2):1:($2/2):(0.32):(3-$1) with boxxyerror lc variable, $off2 using 2:1:3:4 with xerrorbars lc rgb '#333333' lw 1 pt -1, $off2 using 4:1:(sprintf($2 >= 1000 ? '  %.0f' : '  %.2f', $2)) with labels left font ',10'
unset multiplot
set grid noxtics ytics
set autoscale
set xtics autofreq
set ytics autofreq
unset output
}
