"""Put the dumps of several processes together: one value for each distributed tensor."""
