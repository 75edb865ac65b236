package bench

import (
	"testing"
	"time"
)

func TestEveryActivePeerOfACrowdGetsItsFlow(t *testing.T) {
	got, err := Crowd(t.Context(), CrowdConfig{Peers: 40, Active: 8, Flows: 16, Length: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if got.Bits <= 0 || got.Configured <= 0 || got.Session <= 0 {
		t.Errorf("a crowd gave %+v", got)
	}
}

func TestACrowdThatCannotBeIsRefused(t *testing.T) {
	for _, cfg := range []CrowdConfig{
		{}, {Peers: 1, Flows: 1}, {Peers: 1, Active: 2, Flows: 2}, {Peers: 4, Active: 4, Flows: 3}, {Peers: 1, Active: 1, Flows: 1 << 20},
	} {
		if got, err := Crowd(t.Context(), cfg); err == nil {
			t.Errorf("%+v gave %+v", cfg, got)
		}
	}
}
