package path

import (
	"testing"
	"time"

	"weft"
)

// told replays what is remembered of the ways' states.
func told(t *testing.T, changes []Change) map[weft.Via]State {
	t.Helper()
	states := map[weft.Via]State{}
	var last time.Time
	for i, c := range changes {
		if c.At.Before(last) || c.Reason == "" {
			t.Fatalf("change %d is %+v, after one of %v", i, c, last)
		}
		last = c.At
		if states[c.Via] != c.From {
			t.Fatalf("change %d says that %v was %v; it was %v", i, c.Via, c.From, states[c.Via])
		}
		if c.Gone {
			delete(states, c.Via)
			continue
		}
		if c.From == c.To {
			t.Fatalf("change %d is none: %+v", i, c)
		}
		states[c.Via] = c.To
	}
	return states
}

func TestTheHistoryOfWaysLeadsToWhereTheyAre(t *testing.T) {
	forSeeds(t, 25, func(t *testing.T, seed uint64) {
		w := settled(t, seed)
		for range 4 {
			side := w.hosts[w.rng.IntN(2)]
			side.fault.direct = !side.fault.direct
			w.run(time.Duration(1+w.rng.IntN(9)) * time.Second)
		}
		for _, h := range w.hosts {
			s := h.agent.Snapshot(w.now)
			if len(s.Changes) < 2 || len(s.Changes) == keptChanges {
				continue // what was before is forgotten
			}
			states := told(t, s.Changes)
			for _, p := range s.Pairs {
				if states[p.Via] != p.State {
					t.Errorf("%s: %v is %v, and was told to be %v", h.name, p.Via, p.State, states[p.Via])
				}
				delete(states, p.Via)
			}
			for via, state := range states {
				t.Errorf("%s: %v is no way any more, and was told to be %v", h.name, via, state)
			}
		}
	})
}

func TestWhyAWayFailedCameBackOrWentIsRemembered(t *testing.T) {
	r := newRig(t)
	home := direct("203.0.113.9:7")
	r.SetRemote(r.now, candidates(weft.Host, "203.0.113.9:7"))
	r.play(3*time.Second, map[weft.Via]time.Duration{relayUDP: 20 * time.Millisecond, home: 10 * time.Millisecond})
	r.Want(r.now)
	r.play(40*time.Second, map[weft.Via]time.Duration{relayUDP: 20 * time.Millisecond})
	r.Want(r.now)
	r.play(20*time.Second, map[weft.Via]time.Duration{relayUDP: 20 * time.Millisecond, home: 10 * time.Millisecond})
	r.SetRelays(r.now, nil)
	r.poll()
	var got []string
	for _, c := range r.Snapshot(r.now).Changes {
		to := c.To.String()
		if c.Gone {
			to = "gone"
		}
		got = append(got, c.Via.String()+" "+to+": "+c.Reason)
	}
	t.Logf("%q", got)
	count := map[string]int{}
	for _, c := range r.Snapshot(r.now).Changes {
		switch {
		case c.Gone && c.Via == relayUDP:
			count["the relay went"]++
		case c.Via == home && c.From == Untested && c.To == Valid:
			count["it answered"]++
		case c.Via == home && c.To == Failed:
			count["it failed"]++
		case c.Via == home && c.From == Failed && c.To == Valid:
			count["it came back"]++
		}
	}
	for _, what := range []string{"the relay went", "it answered", "it failed", "it came back"} {
		if count[what] != 1 {
			t.Errorf("%s %d times: %q", what, count[what], got)
		}
	}
}

func TestTheHistoryOfWaysIsBounded(t *testing.T) {
	var h history
	for i := range 10 * keptChanges {
		h.add(Change{Reason: string(rune('a' + i%26))})
	}
	if len(h.changes) != keptChanges || cap(h.changes) > 2*keptChanges || h.changes[keptChanges-1].Reason != string(rune('a'+(10*keptChanges-1)%26)) {
		t.Errorf("%d are kept, room for %d, the last is %+v", len(h.changes), cap(h.changes), h.changes[len(h.changes)-1])
	}
}
