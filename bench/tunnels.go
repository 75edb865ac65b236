package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// tunnels measures what one pair of hosts is for. The parts come one after the other, and in each the subjects
// alternate; who is first changes from round to round.
func (r *overlayRun) tunnels(ctx context.Context) (err error) {
	l, err := r.lab(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	s, err := r.site(ctx, l, false)
	if err != nil {
		return err
	}
	defer s.disturbances()
	for _, p := range []struct {
		name     string
		subjects []string
		measure  func(context.Context, subject, int) error
	}{
		{"throughput", []string{bare, plain, direct}, s.throughput},
		{"streams", []string{plain, direct}, s.streams},
		{"udp", []string{plain, direct}, s.udp},
		{"rtt", []string{bare, plain, direct}, s.rtt},
		{"loaded", []string{plain, direct}, s.loaded},
	} {
		if r.wants(p.name) {
			if err := s.rounds(ctx, r.Rounds, p.subjects, p.measure); err != nil {
				return err
			}
		}
	}
	if r.wants("memory") { // of processes that have done all that, and before profiles add theirs
		if err := s.rounds(ctx, 1, []string{plain, direct}, s.memory); err != nil {
			return err
		}
	}
	if r.wants("profile") {
		if err := s.rounds(ctx, r.Rounds, []string{plain, direct}, s.profile); err != nil {
			return err
		}
	}
	if r.wants("relays") {
		return s.rounds(ctx, r.Rounds, []string{direct, udpRelay, streamPath}, s.relayed)
	}
	return nil
}

// disturbances says how much of what was measured is to be read with care.
func (s *site) disturbances() {
	if s.disturbed > 0 {
		s.report.Note("%d of %d runs were beside other work of more than %.1f CPU s per s", s.disturbed, s.runs, disturbance)
	}
}

// rounds measures every subject once a round. What was measured of a path that changed meanwhile is measured again.
func (s *site) rounds(ctx context.Context, rounds int, subjects []string, measure func(context.Context, subject, int) error) error {
	const tries = 3
	for round := 1; round <= rounds; round++ {
		for i := range subjects {
			x := s.subject(subjects[(i+round-1)%len(subjects)])
			err := measure(ctx, x, round)
			for try := 1; try < tries && errors.Is(err, errMoved); try++ {
				s.say("round %d: once more: %v", round, err)
				s.report.Note("Measured again: %v.", err)
				if err = s.force(ctx, x); err == nil {
					err = measure(ctx, x, round)
				}
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *site) throughput(ctx context.Context, x subject, round int) error {
	return s.streamed(ctx, x, round, 1, oneStream, cpuOne)
}

func (s *site) streams(ctx context.Context, x subject, round int) error {
	return s.streamed(ctx, x, round, 8, manyStreams, cpuMany)
}

func (s *site) streamed(ctx context.Context, x subject, round, streams int, rate, cpu string) error {
	f, err := s.stream(ctx, x, streams, nil)
	if err != nil {
		return err
	}
	s.report.Add(x.name, rate, "Mbit/s", round, f.bits/1e6)
	s.report.Add(x.name, cpu, "s", round, f.cpuPerGB)
	s.say("round %d: %s: %-18s %6.0f Mbit/s, %.2f CPU s per GB", round, rate, x.name, f.bits/1e6, f.cpuPerGB)
	return nil
}

func (s *site) udp(ctx context.Context, x subject, round int) error {
	f, err := s.datagrams(ctx, x)
	if err != nil {
		return err
	}
	s.report.Add(x.name, udpDelivered, "Mbit/s", round, f.bits/1e6)
	s.report.Add(x.name, udpOffered, "Mbit/s", round, f.sent/1e6)
	s.report.Add(x.name, udpLost, "%", round, f.lost()*100)
	s.say("round %d: UDP: %-18s %6.0f of %.0f Mbit/s delivered, %.1f %% lost", round, x.name, f.bits/1e6, f.sent/1e6, f.lost()*100)
	return nil
}

func (s *site) rtt(ctx context.Context, x subject, round int) error {
	const interval = 10 * time.Millisecond
	if _, err := s.ping(ctx, x, 5, interval); err != nil { // not counted: it wakes the path
		return err
	}
	e, err := s.ping(ctx, x, s.Echoes, interval)
	if err == nil {
		err = s.still(ctx, x)
	}
	if err != nil {
		return err
	}
	s.report.Add(x.name, rttIdle, "ms", round, quantile(e.rtts, 0.5))
	s.report.Add(x.name, rttIdle95, "ms", round, quantile(e.rtts, 0.95))
	s.say("round %d: RTT, idle: %-18s %.3f ms, 95 %% below %.3f", round, x.name, quantile(e.rtts, 0.5), quantile(e.rtts, 0.95))
	return nil
}

func (s *site) loaded(ctx context.Context, x subject, round int) error {
	const interval = 20 * time.Millisecond
	count := int((s.Length - warmUp/2) / interval) // the last is answered before the load ends
	var e echoes
	f, err := s.stream(ctx, x, 1, func(ctx context.Context) (err error) {
		e, err = s.ping(ctx, x, count, interval)
		return err
	})
	if err != nil {
		return err
	}
	s.report.Add(x.name, rttBusy, "ms", round, quantile(e.rtts, 0.5))
	s.report.Add(x.name, rttBusy95, "ms", round, quantile(e.rtts, 0.95))
	s.report.Add(x.name, rttBusyLost, "%", round, 100*float64(e.lost)/float64(count))
	s.report.Add(x.name, rttBusyRate, "Mbit/s", round, f.bits/1e6)
	s.say("round %d: RTT under load: %-18s %.3f ms, 95 %% below %.3f, %d of %d lost, beside %.0f Mbit/s", round, x.name,
		quantile(e.rtts, 0.5), quantile(e.rtts, 0.95), e.lost, count, f.bits/1e6)
	return nil
}

// memory loads a tunnel with 8 streams and tells the most that either end ever had in memory.
func (s *site) memory(ctx context.Context, x subject, round int) error {
	if _, err := s.stream(ctx, x, 8, nil); err != nil {
		return err
	}
	most := 0.0
	for i, e := range s.ends(x.name) {
		peak, err := peakMemory(e.process.PID())
		if err != nil {
			return err
		}
		most = max(most, peak)
		s.say("memory: %-18s %.1f MiB at most, %s", x.name, peak/(1<<20), []string{"sending", "receiving"}[i])
	}
	s.report.Add(x.name, memoryPeak, "MiB", round, most/(1<<20))
	return nil
}

// profile profiles both ends of a tunnel beside one stream.
func (s *site) profile(ctx context.Context, x subject, round int) error {
	var profiles [2][]byte
	_, err := s.stream(ctx, x, 1, func(ctx context.Context) error {
		var errs [2]error
		var both sync.WaitGroup
		for i, e := range s.ends(x.name) {
			both.Go(func() { profiles[i], errs[i] = e.local.Profile(ctx, "cpu", s.Length-warmUp/2) })
		}
		both.Wait()
		return errors.Join(errs[:]...)
	})
	if err != nil {
		return err
	}
	var sum usage
	for i, b := range profiles {
		u, err := profileUsage(b)
		if err != nil {
			return fmt.Errorf("the profile of %s: %w", x.name, err)
		}
		if err := s.keep(fmt.Sprintf("cpu-%s-%s-%d.pprof", map[string]string{plain: plain, direct: "weft"}[x.name],
			[]string{"sending", "receiving"}[i], round), b); err != nil {
			return err
		}
		sum.total += u.total
		sum.cipher += u.cipher
		sum.kernel += u.kernel
	}
	if sum.total == 0 {
		return fmt.Errorf("the profiles of %s are empty", x.name)
	}
	share := func(part int64) float64 { return 100 * float64(part) / float64(sum.total) }
	s.report.Add(x.name, cipherShare, "%", round, share(sum.cipher))
	s.report.Add(x.name, kernelShare, "%", round, share(sum.kernel))
	s.say("round %d: profile: %-18s %.1f %% cipher, %.1f %% system calls", round, x.name, share(sum.cipher), share(sum.kernel))
	return nil
}

// relayed comes last: it leaves the path as it needed it.
func (s *site) relayed(ctx context.Context, x subject, round int) error {
	if err := s.force(ctx, x); err != nil {
		return err
	}
	return s.streamed(ctx, x, round, 1, relayedRate, relayedCPU)
}

// jumbo measures tunnels over a link with jumbo frames.
func (r *overlayRun) jumbo(ctx context.Context) (err error) {
	l, err := r.lab(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	s, err := r.site(ctx, l, true)
	if err != nil {
		return err
	}
	why, err := s.widen(ctx)
	if err != nil {
		return err
	}
	if why != "" {
		r.report.Skip(jumboRate, why)
		r.say("MTU %d is left out: %s", jumboMTU, why)
		return nil
	}
	defer s.disturbances()
	return s.rounds(ctx, r.Rounds, []string{plain, direct}, func(ctx context.Context, x subject, round int) error {
		return s.streamed(ctx, x, round, 1, jumboRate, jumboCPU)
	})
}
