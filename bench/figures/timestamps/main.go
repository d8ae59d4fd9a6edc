// Timestamps is the MPLB paper's "timestamp evaluation": it measures the throughput of a
// Multipath TCP connection over one path through a load balancer, with and without the 13
// bits in the server's timestamps. Delays are 1 to 500 ms and losses 0.01 to 5 %;
// measurements alternate, each in a lab of its own. As root:
//
//	make figures FIGURES=mplb-timestamps
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// tripsMin that a measurement lasts, as TCP adapts once in each.
const tripsMin = 40

type settings struct {
	delays, losses []float64
	rounds         int
	while          time.Duration
	algorithm      string
	bin            string
}

func main() {
	log.SetFlags(0)
	s := settings{}
	delays := flag.String("delays", "1,10,50,100,200,500", "round-trip times in ms, with commas between")
	losses := flag.String("losses", "0.01,0.1,1,5", "losses in per cent of the frames of each direction, with commas between")
	flag.IntVar(&s.rounds, "rounds", 3, "measurements of each kind")
	flag.DurationVar(&s.while, "while", 4*time.Second, "time of a measurement, 40 round trips at least, behind a warm-up of 1 s and eight of these")
	flag.StringVar(&s.algorithm, "tcp", "reno", "TCP's algorithm at both ends, one of net.ipv4.tcp_allowed_congestion_control")
	flag.StringVar(&s.bin, "bin", "bin", "directory of the programs")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if s.delays, err = numbers(*delays, 0.1, 5000); err != nil {
		log.Fatalf("-delays: %v", err)
	}
	if s.losses, err = numbers(*losses, 0, 50); err != nil {
		log.Fatalf("-losses: %v", err)
	}
	if s.rounds < 1 || s.while <= 0 {
		log.Fatal("-rounds, -while: give at least one measurement and some time")
	}
	if err := compareBits(ctx, s); err != nil {
		log.Fatal(err)
	}
}

func numbers(text string, from, to float64) (list []float64, err error) {
	for word := range strings.SplitSeq(text, ",") {
		n, err := strconv.ParseFloat(word, 64)
		if err != nil || n < from || n > to {
			return nil, fmt.Errorf("%q: give numbers from %v to %v", word, from, to)
		}
		list = append(list, n)
	}
	return list, nil
}

// compareBits prints a line for each delay and loss.
func compareBits(ctx context.Context, s settings) (err error) {
	var places [2]*place
	for i, name := range []string{"plain", "thirteen-bits"} {
		if places[i], err = build(ctx, s, name, i == 1); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, places[i].remove()) }()
	}
	fmt.Println("MPLB, timestamp evaluation: Mbit/s with thirteen bits in the server's timestamps, and without")
	if err := s.printSetting(); err != nil {
		return err
	}
	fmt.Printf("%8s %7s   %-24s %-24s %s\n", "rtt ms", "loss %", "without", "with thirteen bits", "ratio")
	for _, delay := range s.delays {
		for _, loss := range s.losses {
			var rates [2][]float64
			for range s.rounds {
				for i, p := range places {
					rate, err := p.delayed(ctx, s.while, time.Duration(delay*float64(time.Millisecond)), loss/100)
					if err != nil {
						return err
					}
					rates[i] = append(rates[i], rate)
				}
			}
			fmt.Printf("%8v %7v   %-24s %-24s %.2f\n", delay, loss, shown(rates[0]), shown(rates[1]), median(rates[1])/median(rates[0]))
		}
	}
	for _, p := range places {
		if err := p.printKernel(); err != nil {
			return err
		}
	}
	return nil
}

// delayed rate of a new connection, at that round-trip time and loss.
func (p *place) delayed(ctx context.Context, while, rtt time.Duration, loss float64) (float64, error) {
	p.line.Set(rtt/2, 0) // for the handshake, whose repetitions take seconds
	connection, err := p.open(ctx)
	if err != nil {
		return 0, err
	}
	defer connection.Close()
	p.line.Set(rtt/2, loss)
	mbits, err := rate(connection, time.Second+8*rtt, max(while, tripsMin*rtt))
	if err != nil {
		return 0, fmt.Errorf("%s, %v, %v %%: %w", p.name, rtt, 100*loss, err)
	}
	return mbits, ctx.Err()
}

// printSetting of the measurements and the machine.
func (s settings) printSetting() error {
	fmt.Printf("One connection of Multipath TCP over one path, echoed, %s; median of %d of %v each or more, in turns (least to most)\n", s.algorithm, s.rounds, s.while)
	var name unix.Utsname
	cpus, err := os.ReadFile("/proc/cpuinfo")
	load, loadErr := os.ReadFile("/proc/loadavg")
	if err := errors.Join(err, loadErr, unix.Uname(&name)); err != nil {
		return err
	}
	model := "unknown processor"
	if _, after, found := strings.Cut(string(cpus), "model name\t: "); found {
		model, _, _ = strings.Cut(after, "\n")
	}
	_, err = fmt.Printf("Machine: %s, %d cores, Linux %s; load averages before: %s\n\n", model, runtime.NumCPU(),
		unix.ByteSliceToString(name.Release[:]), strings.Join(strings.Fields(string(load))[:3], " "))
	return err
}

func shown(rates []float64) string {
	return fmt.Sprintf("%.2f (%.2f to %.2f)", median(rates), slices.Min(rates), slices.Max(rates))
}

func median(rates []float64) float64 {
	sorted := slices.Sorted(slices.Values(rates))
	return sorted[len(sorted)/2]
}
