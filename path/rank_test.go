package path

import (
	"cmp"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"weft"
)

func TestScoresAreOrderedFromBestToWorst(t *testing.T) {
	ms := func(n int) (int, time.Duration) {
		d := time.Duration(n) * time.Millisecond
		return band(d), d
	}
	score := func(c Class, m weft.Method, rtt int, r Reach, v4 bool) Score {
		b, d := ms(rtt)
		return Score{Class: c, Method: m, Band: b, RTT: d, Reach: r, V4: v4}
	}
	best := []Score{
		score(Working, weft.Direct, 1, Local, true),
		score(Working, weft.Direct, 20, Local, true),
		score(Working, weft.Direct, 20, Public, false),
		score(Working, weft.Direct, 20, Public, true),
		score(Working, weft.Direct, 21, Public, true), // the same band
		score(Working, weft.Direct, 20, Reflected, true),
		score(Working, weft.Direct, 90, Local, false),
		score(Working, weft.RelayUDP, 5, Local, false), // direct comes first, as long as it works
		score(Working, weft.RelayStream, 5, Local, false),
		score(Unproven, weft.RelayUDP, 0, Local, false),
		score(Unproven, weft.RelayStream, 0, Local, false),
		score(Doubtful, weft.RelayUDP, 5, Local, false),
		score(Barred, weft.Direct, 5, Local, false),
		score(Stale, weft.Direct, 5, Local, false),
		score(Silent, weft.RelayUDP, 5, Local, false),
		score(Dead, weft.Direct, 5, Local, false),
	}
	dear := score(Working, weft.Direct, 1, Local, false)
	dear.Metric = 20
	best = slices.Insert(best, slices.IndexFunc(best, func(s Score) bool { return s.Class != Working }), dear) // whatever else it has
	for i, a := range best {
		for j, b := range best {
			if got, want := a.Compare(b), cmp.Compare(i, j); got != want {
				t.Errorf("number %d against %d: %d, want %d", i, j, got, want)
			}
		}
	}
}

func TestScoresAreATotalOrder(t *testing.T) {
	scores := rapid.Custom(func(t *rapid.T) Score {
		return Score{
			Class: Class(rapid.IntRange(0, int(Unusable)).Draw(t, "class")), Method: weft.Method(rapid.IntRange(0, 3).Draw(t, "method")),
			Metric: rapid.IntRange(0, 2).Draw(t, "metric"),
			Band:   rapid.IntRange(0, 3).Draw(t, "band"), Reach: Reach(rapid.IntRange(0, 2).Draw(t, "reach")),
			V4: rapid.Bool().Draw(t, "v4"), RTT: time.Duration(rapid.IntRange(0, 3).Draw(t, "rtt")), Order: rapid.IntRange(0, 3).Draw(t, "order"),
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		a, b, c := scores.Draw(t, "a"), scores.Draw(t, "b"), scores.Draw(t, "c")
		if a.Compare(b) != -b.Compare(a) {
			t.Fatal("not antisymmetric")
		}
		if (a.Compare(b) == 0) != (a == b) {
			t.Fatal("different scores are equal")
		}
		if a.Compare(b) <= 0 && b.Compare(c) <= 0 && a.Compare(c) > 0 {
			t.Fatal("not transitive")
		}
	})
}

func TestBandsGrowWithTimeAndAreNarrow(t *testing.T) {
	last := -1
	for us := 0; us < 5_000_000; us += 250 {
		d := time.Duration(us) * time.Microsecond
		b := band(d)
		if b < last {
			t.Fatalf("band %d at %v after %d", b, d, last)
		}
		if d >= 4*time.Millisecond && band(d+d/4+time.Millisecond) == b {
			t.Fatalf("%v and %v are in one band", d, d+d/4+time.Millisecond)
		}
		last = b
	}
	if last >= unmeasured {
		t.Errorf("the band %d of 5 s is not below that of unmeasured pairs", last)
	}
}

func TestTheRoundTripTimeIsEstimatedAsInRFC6298(t *testing.T) {
	var r rtt
	if r.timeout() != firstTimeout || r.base() != 0 {
		t.Errorf("without a sample: timeout %v, base %v", r.timeout(), r.base())
	}
	for _, c := range []struct{ sample, srtt, rttvar, timeout time.Duration }{
		{100, 100, 50, 320},
		{100, 100, 37500 * time.Microsecond / time.Millisecond, 270}, // 37.5
		{300, 125, 78, 458},
		{20, 111, 84, 470},
	} {
		r.add(c.sample * time.Millisecond)
		near := func(got, want time.Duration) bool { return (got - want*time.Millisecond).Abs() < 2*time.Millisecond }
		if !near(r.smoothed, c.srtt) || !near(r.variation, c.rttvar) || !near(r.timeout(), c.timeout) {
			t.Errorf("after %d ms: %v, %v, %v; want %d, %d, %d ms", c.sample, r.smoothed, r.variation, r.timeout(), c.srtt, c.rttvar, c.timeout)
		}
	}
	if r.base() != 20*time.Millisecond {
		t.Errorf("base %v, want the least sample", r.base())
	}
	for range baseWindow {
		r.add(500 * time.Millisecond)
	}
	if r.base() != 500*time.Millisecond {
		t.Errorf("base %v still remembers what is long past", r.base())
	}
	for range 50 {
		r.add(5 * time.Second)
	}
	if r.timeout() != maxTimeout {
		t.Errorf("timeout %v, want at most %v", r.timeout(), maxTimeout)
	}
}

func TestABetterPathHasToBeClearlyBetterAndStay(t *testing.T) {
	for _, c := range []struct {
		name      string
		used, new string // addresses
		was, is   time.Duration
		want      bool
	}{
		{"as fast", "203.0.113.1:1", "203.0.113.2:1", 50, 50, false},
		{"a little faster", "203.0.113.1:1", "203.0.113.2:1", 50, 46, false},
		{"faster by 5 ms", "203.0.113.1:1", "203.0.113.2:1", 50, 45, true},
		{"faster by less than a tenth", "203.0.113.1:1", "203.0.113.2:1", 200, 182, false},
		{"faster by a tenth", "203.0.113.1:1", "203.0.113.2:1", 200, 180, true},
		{"nearer and as fast", "203.0.113.1:1", "192.168.1.9:1", 3, 3, true},
		{"nearer and hardly slower", "203.0.113.1:1", "192.168.1.9:1", 3, 5, true},
		{"nearer and slower", "203.0.113.1:1", "192.168.1.9:1", 3, 8, false},
		{"farther and as fast", "192.168.1.9:1", "203.0.113.1:1", 3, 3, false},
		{"IPv6 and as fast", "203.0.113.1:1", "[2001:db8::1]:1", 30, 30, true},
		{"IPv4 and as fast", "[2001:db8::1]:1", "203.0.113.1:1", 30, 30, false},
	} {
		r := newRig(t)
		r.SetLocal(r.now, append(candidates(weft.Host, "192.168.1.2:1"), candidates(weft.Host, "[2001:db8::9]:1")...))
		r.SetRemote(r.now, candidates(weft.Host, c.used, c.new))
		used, other := direct(c.used), direct(c.new)
		play := func(d time.Duration, both bool) {
			rtts := map[weft.Via]time.Duration{used: c.was * time.Millisecond}
			if both {
				rtts[other] = c.is * time.Millisecond
			}
			r.play(d, rtts)
		}
		play(500*time.Millisecond, false)
		if r.Selected() != used {
			t.Fatalf("%s: selected %v", c.name, r.Selected())
		}
		r.NetworkChanged(r.now)
		play(2*time.Second, true)
		if r.Selected() != used {
			t.Errorf("%s: moved after 2 s already", c.name)
		}
		play(4*time.Second, true)
		if got := r.Selected() == other; got != c.want {
			t.Errorf("%s (%d ms -> %d ms): moved is %v, want %v; %v", c.name, c.was, c.is, got, c.want, r.Snapshot(r.now).Reason)
		}
	}
}
