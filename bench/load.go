package bench

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"weft/lab/netns"
)

const (
	// warmUp is the beginning of every load, which does not count: slow start and cold caches.
	warmUp = time.Second
	// datagram and offered are the load of datagrams: bytes, and bits per second.
	datagram = 1300
	offered  = "1G"
)

// carried is what one run of iperf3 gave.
type carried struct {
	bits     float64 // per second, that arrived after the warm-up
	sent     float64 // per second, that the program gave to its socket after the warm-up
	bytes    float64 // sent, with the warm-up
	cpuPerGB float64 // CPU seconds of the whole machine per 1e9 bytes, less what it does at rest
}

// lost is the share of what was sent that did not arrive, 0 to 1.
func (f carried) lost() float64 { return max(0, 1-f.bits/f.sent) }

// undisturbed runs something again, as often as it may, if the machine had other work meanwhile. It tells what the last
// run cost, if anybody wants to know.
func (s *site) undisturbed(name string, run func() error, cost func(took, busy time.Duration)) error {
	for try := 1; ; try++ {
		before, err := s.meter()
		if err != nil {
			return err
		}
		if err := run(); err != nil {
			return err
		}
		after, err := s.meter()
		if err != nil {
			return err
		}
		took, busy, others := after.since(before)
		share := others.Seconds() / took.Seconds()
		if share > disturbance && try < s.Tries {
			s.say("%s: once more: the machine had other work, %.2f s per s", name, share)
			continue
		}
		s.runs++
		if share > disturbance {
			s.disturbed++
			busy = after.ours - before.ours // what others took is no cost of a tunnel
		}
		if cost != nil {
			cost(took, busy)
		}
		return nil
	}
}

// load runs iperf3 from a to b, and something beside it once it is warm.
func (s *site) load(ctx context.Context, x subject, beside func(context.Context) error, args ...string) (f carried, err error) {
	err = s.undisturbed(x.name, func() (err error) {
		f, err = s.loadOnce(ctx, x, beside, args)
		return err
	}, func(took, busy time.Duration) {
		f.cpuPerGB = (busy.Seconds() - s.idle*took.Seconds()) / (f.bytes / 1e9)
	})
	if err != nil {
		return f, err
	}
	return f, s.still(ctx, x)
}

func (s *site) loadOnce(ctx context.Context, x subject, beside func(context.Context) error, args []string) (carried, error) {
	args = append([]string{"--client", x.target.String(), "--json", "--time", strconv.Itoa(int(s.Length.Seconds())),
		"--omit", strconv.Itoa(int(warmUp.Seconds()))}, args...)
	type result struct {
		out string
		err error
	}
	ended := make(chan result, 1)
	go func() {
		out, err := s.iperf(ctx, cmp.Or(x.from, s.a), args)
		ended <- result{out, err}
	}()
	var err error
	if beside != nil {
		if err = pause(ctx, warmUp); err == nil {
			err = beside(ctx)
		}
	}
	got := <-ended
	if err = errors.Join(got.err, err); err != nil {
		return carried{}, fmt.Errorf("%s: %w", x.name, err)
	}
	f, err := parseFlow(got.out)
	if err != nil {
		return carried{}, fmt.Errorf("%s: %w", x.name, err)
	}
	return f, nil
}

// iperf runs the client. The server of the last run may be busy with its end for a moment.
func (s *site) iperf(ctx context.Context, from *netns.Host, args []string) (string, error) {
	const tries = 20
	for try := 1; ; try++ {
		out, err := from.Run(ctx, "iperf3", args...)
		if err == nil || try == tries || !strings.Contains(out+err.Error(), "busy running a test") {
			return out, err
		}
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return "", err
		}
	}
}

// stream measures TCP streams.
func (s *site) stream(ctx context.Context, x subject, streams int, beside func(context.Context) error) (carried, error) {
	return s.load(ctx, x, beside, "--congestion", s.Congestion, "--parallel", strconv.Itoa(streams))
}

// datagrams measures UDP at a fixed rate.
func (s *site) datagrams(ctx context.Context, x subject) (carried, error) {
	return s.load(ctx, x, nil, "--udp", "--bitrate", offered, "--length", strconv.Itoa(datagram))
}

// parseFlow reads the JSON of iperf3's client.
func parseFlow(out string) (f carried, err error) {
	type sum struct {
		Bytes float64
		Bits  float64 `json:"bits_per_second"`
	}
	var doc struct {
		Error     string
		Intervals []struct{ Sum sum }
		End       struct {
			Sent     sum `json:"sum_sent"`
			Received sum `json:"sum_received"`
		}
	}
	if err := json.Unmarshal([]byte(out), &doc); err != nil {
		return f, fmt.Errorf("iperf3 printed no JSON: %w", err)
	}
	if doc.Error != "" {
		return f, fmt.Errorf("iperf3: %s", doc.Error)
	}
	for _, i := range doc.Intervals {
		f.bytes += i.Sum.Bytes
	}
	// Its own counts of lost datagrams are wrong where the beginning is left out; what arrived is not.
	f.bits, f.sent = doc.End.Received.Bits, doc.End.Sent.Bits
	if f.bits <= 0 || f.bytes <= 0 || f.sent <= 0 {
		return f, errors.New("iperf3: nothing was received")
	}
	return f, nil
}

// echoes are what one run of ping gave: the RTTs in milliseconds in ascending order, and how many got no answer.
type echoes struct {
	rtts []float64
	lost int
}

var pingTime = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`icmp_seq=\d+ ttl=\d+ time=([\d.]+) ms\n`) }) // one that came twice has words behind

// ping sends echoes from a to b.
func (s *site) ping(ctx context.Context, x subject, count int, interval time.Duration) (echoes, error) {
	out, err := s.a.Run(ctx, "ping", "-c", strconv.Itoa(count), "-i", strconv.FormatFloat(interval.Seconds(), 'f', 3, 64),
		"-W", "1", x.target.String())
	if err != nil {
		return echoes{}, fmt.Errorf("%s: %w", x.name, err)
	}
	return parsePing(out, count)
}

func parsePing(out string, count int) (e echoes, err error) {
	for _, m := range pingTime().FindAllStringSubmatch(out, -1) {
		v, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			return e, fmt.Errorf("ping printed the time %q", m[1])
		}
		e.rtts = append(e.rtts, v)
	}
	if len(e.rtts) == 0 {
		return e, errors.New("ping printed no RTT")
	}
	slices.Sort(e.rtts)
	e.lost = max(0, count-len(e.rtts))
	return e, nil
}
