package cli

import (
	"maps"
	"slices"
	"testing"
)

func TestLinksAreTakenInTheOrderOfTheirMetrics(t *testing.T) {
	got, metrics, err := parseLinks([]string{"wwan0", "eth0:20", "wlan0:10", "eth1:20", "usb0", "usb1:65535"})
	if want := []string{"wwan0", "usb0", "wlan0", "eth0", "eth1", "usb1"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
	if want := map[string]int{"wwan0": 0, "usb0": 0, "wlan0": 10, "eth0": 20, "eth1": 20, "usb1": 1<<16 - 1}; !maps.Equal(metrics, want) {
		t.Errorf("metrics are %v, want %v", metrics, want)
	}
	if got, metrics, err := parseLinks(nil); err != nil || got != nil || metrics != nil {
		t.Errorf("of none: %q, %v, %v", got, metrics, err)
	}
}
