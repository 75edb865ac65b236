package bench

func (r *BondReport) page() ([]byte, error) { return nil, nil }
