package cli

import (
	"slices"
	"testing"
)

func TestLinksAreTakenInTheOrderOfTheirMetrics(t *testing.T) {
	got, err := parseLinks([]string{"wwan0", "eth0:20", "wlan0:10", "eth1:20", "usb0"})
	if want := []string{"wlan0", "eth0", "eth1", "wwan0", "usb0"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
	if got, err := parseLinks(nil); err != nil || got != nil {
		t.Errorf("of none: %q, %v", got, err)
	}
}
