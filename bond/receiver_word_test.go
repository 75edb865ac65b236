package bond_test

import (
	"testing"

	"weft/bond"
)

// TestNobodyWaitsForWhatNobodySendsAgain has a peer say that it has no bond any more. What it has sent before is in order as ever; of what it sends
// after that nothing is held, and nothing told.
func TestNobodyWaitsForWhatNobodySendsAgain(t *testing.T) {
	m := newMailbox(t, bond.ReceiverConfig{})
	m.arrive(1, 7, 0, 1)
	m.arrive(2, 7, 2, 3)
	m.wait(400 * ms) // by 2 nothing comes any more
	m.arrive(1, 7, 5)
	m.r.Alone()
	m.r.Arrive(m.now, m.now, 1, 7, 6, 40, nil, false)
	m.arrive(1, 7, 7, 9)
	m.want(7, 0, 1, 2, 3) // 4 was sent by a bond
	m.arrive(1, 7, 4)
	m.want(7, 4, 5, 7, 9)
	m.wait(100 * ms) // what came before that is told
	told := len(m.fed)
	m.arrive(1, 7, 11, 12)
	m.want(7, 11, 12)
	for c := uint64(13); c < 200; c++ {
		m.arrive(1, 7, c)
		m.wait(5 * ms)
	}
	if n := len(m.fed) - told; n > 0 {
		t.Errorf("%d frames tell of what nobody asked for", n)
	}
	m.got, m.at = nil, nil

	m.r.Named(1, 1) // another bond
	m.r.Arrive(m.now, m.now, 1, 7, 200, 40, nil, false)
	m.r.Alone() // an old word, that was long on its way
	m.r.Arrive(m.now, m.now, 2, 7, 10, 40, nil, false)
	m.arrive(1, 7, 202)
	m.want(7)
	m.arrive(2, 7, 201)
	m.want(7, 201, 202)
	m.wait(30 * ms)
	if len(m.fed) == told {
		t.Error("nothing is told to who bonds")
	}
}
