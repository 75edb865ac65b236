package node

import (
	"math"
	"net/netip"
	"testing"
	"time"

	"weft"
	"weft/engine"
)

func TestRatesAreOfTheLastSecondOrTwo(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	fast, slow := weft.DirectVia(1, netip.MustParseAddrPort("192.0.2.1:1")), weft.DirectVia(2, netip.MustParseAddrPort("192.0.2.1:1"))
	is := func(got, want float64) bool { return math.Abs(got-want) <= want/1e6 }
	var r rates
	if rx, tx := r.of(now, engine.PathCounters{Via: fast, RxBytes: 1e6}); rx != 0 || tx != 0 {
		t.Errorf("without a look the rates are %v and %v", rx, tx)
	}
	list := []engine.PathCounters{{Via: fast}}
	for i := range 50 { // looks as the mesh makes them, ten a second
		if i == 30 {
			list = append(list, engine.PathCounters{Via: slow}) // what is new had carried nothing
		}
		r.note(now, list)
		now = now.Add(100 * time.Millisecond)
		list[0].TxBytes += 125_000 // 10 Mbit/s
		list[0].RxBytes += 12_500
		if i >= 30 {
			list[1].TxBytes += 62_500
		}
		if i < 12 {
			continue
		}
		if rx, tx := r.of(now, list[0]); !is(tx, 10e6) || !is(rx, 1e6) {
			t.Fatalf("after %d looks the rates are %v and %v bit/s", i, rx, tx)
		}
		if i > 42 {
			if _, tx := r.of(now, list[1]); !is(tx, 5e6) {
				t.Fatalf("after %d looks the rate of the other is %v", i, tx)
			}
		}
	}
	// What stopped is slow soon, and what is counted anew is no torrent.
	now = now.Add(2 * time.Second)
	r.note(now, list)
	now = now.Add(time.Second)
	if rx, tx := r.of(now, list[0]); rx != 0 || tx != 0 {
		t.Errorf("a second after it stopped the rates are %v and %v", rx, tx)
	}
	if rx, tx := r.of(now, engine.PathCounters{Via: fast, TxBytes: 1000, RxBytes: 10}); !is(tx, 8000) || !is(rx, 80) {
		t.Errorf("of a way that is known anew they are %v and %v", rx, tx)
	}
	if n := testing.AllocsPerRun(100, func() { now = now.Add(time.Second); r.note(now, list) }); n != 0 {
		t.Errorf("a look allocates %v times", n)
	}
}
